//! Compiles clients' schemas, regular expressions and grammars in this process, and follows answers under them.
//!
//! The server compiles each of them on trial in a separate process with bounds on time and memory. Here nothing bounds them, so inputs with
//! large numbers are skipped: a repetition of 10,000 always takes long, and the trial refuses it.

use std::sync::LazyLock;

use chat::Format;
use grammar::{Compiler, Source};
use logits::Allowed;
use serde_json::Value;

use crate::sections::{sections, text};
use crate::vocabulary::TOKENIZER;

/// Longest input, and the most consecutive digits, that are compiled without a trial.
const MAX_BYTES: usize = 1 << 10;
const MAX_DIGITS: usize = 2;
/// Most tokens of an answer.
const MAX_TOKENS: usize = 24;

static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new(TOKENIZER.clone(), TOKENIZER.vocab_size()));

/// The input's parts: choices of tokens; the schema.
pub fn of_schema(input: &[u8]) {
    let [choices, json] = sections(input);
    if let Ok(schema) = serde_json::from_slice::<Value>(json) {
        follow(&Format::JsonSchema(schema), json, choices);
    }
}

/// The input's parts: the kind and choices of tokens; the grammar.
pub fn of_text(input: &[u8]) {
    let [head, source] = sections(input);
    let Some((kind, choices)) = head.split_first() else { return };
    let format = match kind % 3 {
        0 => Format::Regex(text(source)),
        1 => Format::Lark(text(source)),
        _ => Format::Choice(text(source).split('\n').map(str::to_owned).collect()),
    };
    follow(&format, source, choices);
}

fn follow(format: &Format, source: &[u8], choices: &[u8]) {
    let Ok(grammar) = format.add_to(Source::new("start: @answer")) else { return };
    if source.len() > MAX_BYTES || has_large_number(source) {
        return;
    }
    let Ok(grammar) = COMPILER.compile(&grammar) else { return };
    let mut position = grammar.start();
    for choice in choices.iter().take(MAX_TOKENS) {
        let Ok(Allowed::Mask(mask)) = position.allowed() else { return };
        let ids: Vec<u32> = (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        assert!(ids.iter().all(|id| (*id as usize) < COMPILER.vocab_size()), "the mask allows an id outside the vocabulary");
        let Some(id) = ids.get(usize::from(*choice) % ids.len().max(1)) else { return };
        if position.accept(*id).is_err() {
            return;
        }
    }
    // A sampler never does this, but it must be harmless.
    let _ = position.accept(choices.len() as u32);
}

fn has_large_number(source: &[u8]) -> bool {
    let is_exponent = |two: &[u8]| two[0].eq_ignore_ascii_case(&b'e') && (two[1].is_ascii_digit() || b"+-".contains(&two[1]));
    source.windows(MAX_DIGITS + 1).any(|run| run.iter().all(u8::is_ascii_digit)) || source.windows(2).any(is_exponent)
}
