//! Parses models' answers in pieces, as they arrive.

use std::sync::LazyLock;

use chat::{AnswerStart, Dialect, Parser, Piece, Text};
use template::ChatTemplate;

use crate::sections::{sections, text};
use crate::vocabulary::TOKENIZER;

static DIALECTS: LazyLock<Vec<Dialect>> = LazyLock::new(|| {
    let sources = [
        include_str!("../../tests/golden/templates/Qwen-Qwen3-0.6B.jinja"),
        include_str!("../../tests/golden/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja"),
        include_str!("../../tests/golden/templates/meta-llama-Llama-3.1-8B-Instruct.jinja"),
        include_str!("../../tests/golden/templates/deepseek-ai-DeepSeek-V3.2.jinja"),
        include_str!("../../tests/golden/templates/GLM-4.7-Flash.jinja"),
        include_str!("../../tests/golden/templates/LFM2.5-8B-A1B.jinja"),
        include_str!("../../tests/golden/templates/MiniMax-M3.jinja"),
        include_str!("../../tests/golden/templates/google-gemma-4-31B-it-interleaved.jinja"),
        include_str!("../../tests/golden/templates/openai-gpt-oss-120b.jinja"),
        include_str!("../../tests/golden/templates/smollm2.jinja"),
    ];
    let template = |source: &&str| ChatTemplate::new(source, "<s>", "</s>").expect("a template");
    sources.iter().map(|source| Dialect::of(&template(source), &TOKENIZER)).collect()
});

/// The input's parts: the dialect, where the answer begins, whether it follows a format, and the lengths into which it is cut; then the
/// answer.
pub fn body(input: &[u8]) {
    let [head, answer] = sections(input);
    let [kind, lengths @ ..] = head else { return };
    let dialect = &DIALECTS[usize::from(*kind) % DIALECTS.len()];
    let entry = [AnswerStart::Turn, AnswerStart::Text, AnswerStart::Reasoning { begun: false }, AnswerStart::Reasoning { begun: true }]
        [usize::from(*kind) / 64];
    let parser = Parser::new(Some(dialect.syntax), dialect.thinking, entry);
    let parser = match lengths.len() % 2 {
        0 => parser.with_bare_calls(vec!["f".into(), "get_weather".into()], vec![]),
        _ => parser.with_format(),
    };
    let answer = text(answer);
    let whole = joined(&parser, [answer.as_str()].into_iter());
    let cut = joined(&parser, parts(&answer, lengths).into_iter());
    assert_eq!(whole, cut, "an answer's pieces do not depend on how it is cut");
}

/// Splits the text into parts of these lengths in bytes, each extended to the next border between characters.
fn parts<'a>(mut text: &'a str, lengths: &[u8]) -> Vec<&'a str> {
    let mut parts = Vec::new();
    for length in lengths {
        let (part, rest) = text.split_at(text.ceil_char_boundary(usize::from(*length).min(text.len())));
        parts.push(part);
        text = rest;
    }
    parts.push(text);
    parts
}

/// The pieces of an answer, with neighbours of the same kind joined.
fn joined<'a>(parser: &Parser, parts: impl Iterator<Item = &'a str>) -> Vec<Piece> {
    let mut parser = parser.clone();
    let mut pieces: Vec<Piece> = parts.flat_map(|part| parser.push(Text::from(part.to_owned()))).collect();
    pieces.extend(parser.finish(false));
    let mut joined: Vec<Piece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), &piece) {
            (Some(Piece::Text(before)), Piece::Text(more)) => before.text += &more.text,
            (Some(Piece::Reasoning(before)), Piece::Reasoning(more)) => *before += more,
            (Some(Piece::Arguments { text: before, call: a }), Piece::Arguments { text: more, call: b }) if a == b => *before += more,
            _ => joined.push(piece),
        }
    }
    joined
}
