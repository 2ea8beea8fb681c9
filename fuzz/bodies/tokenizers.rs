//! Loads vocabularies of every kind and tokenizes texts with them.

use gguf::{Array, GgufBuilder, GgufFile, Value};
use tokenizer::{Gap, Tokenizer};

use crate::memory_file::MemoryFile;
use crate::sections::{sections, text};

/// Kinds of vocabularies: `tokenizer.ggml.model` and `tokenizer.ggml.pre`.
const KINDS: [(&str, &str); 16] = [
    ("gpt2", "gpt-2"),
    ("gpt2", "qwen2"),
    ("gpt2", "llama-bpe"),
    ("gpt2", "deepseek-llm"),
    ("gpt2", "falcon"),
    ("gpt2", "gpt-4o"),
    ("gpt2", "whitespace"),
    ("gpt2", "tekken"),
    ("whitespace", ""),
    ("gemma4", ""),
    ("llama", ""),
    ("t5", ""),
    ("bert", ""),
    ("gpt2", "gemma4"),
    ("gpt2", "default"),
    ("gpt2", "bert-bge"),
];
/// Separates tokens and merges. UTF-8 text never contains this byte.
const NEXT: u8 = 0xfe;
/// Value of a control token in `tokenizer.ggml.token_type`.
const CONTROL: i32 = 3;
/// Most tokens of a text, for encodings with a bound.
const MOST: usize = 64;

/// The input's parts: kind, flags and special ids; tokens; merges; a type and a score per token; the text; normalisation rules.
pub fn of_metadata(input: &[u8]) {
    let [head, tokens, merges, per_token, words, charsmap] = sections(input);
    let byte = |at: usize| head.get(at).copied().unwrap_or_default();
    let (model, pre) = KINDS[usize::from(byte(0)) % KINDS.len()];
    let tokens: Vec<String> = tokens.split(|byte| *byte == NEXT).map(text).collect();
    let merges: Vec<String> = merges.split(|byte| *byte == NEXT).map(text).collect();
    let at = |i: usize| per_token.get(i).copied().unwrap_or(1);
    let types: Vec<i32> = (0..tokens.len()).map(|i| i32::from(at(2 * i) % 8)).collect();
    let scores: Vec<f32> = (0..tokens.len()).map(|i| -f32::from(at(2 * i + 1)) / 4.0).collect();
    let mut file = GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("general.name", if byte(1) & 1 == 1 { "phi-3" } else { "fuzz" })
        .kv("tokenizer.ggml.model", model)
        .kv("tokenizer.ggml.tokens", tokens)
        .kv("tokenizer.ggml.token_type", types.clone())
        .kv("tokenizer.ggml.scores", scores);
    if !pre.is_empty() {
        file.set("tokenizer.ggml.pre", pre);
    }
    if !merges.is_empty() {
        file.set("tokenizer.ggml.merges", merges);
    }
    if !charsmap.is_empty() {
        file.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(charsmap.to_vec())));
    }
    let flags = ["add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces", "normalizer.lowercase", "add_sep_token"];
    for (bit, flag) in flags.iter().enumerate().filter(|(bit, _)| byte(1) >> (bit + 1) & 1 == 1) {
        file.set(&format!("tokenizer.ggml.{flag}"), byte(2) >> bit & 1 == 1);
    }
    let ids = ["bos", "eos", "unknown", "eot", "fim_pre", "fim_suf", "fim_mid", "seperator", "cls", "mask"];
    for (i, id) in ids.iter().enumerate().filter(|(i, _)| byte(3 + i) > 0) {
        file.set(&format!("tokenizer.ggml.{id}_token_id"), u32::from(byte(3 + i)) - 1);
    }
    let memory = MemoryFile::new(&file.build());
    let Ok(tokenizer) = GgufFile::open(memory.path()).map_err(drop).and_then(|file| Tokenizer::from_gguf(&file).map_err(drop)) else {
        return;
    };
    let unknown = u32::from(byte(5)).checked_sub(1);
    let of_text = check(&tokenizer, &text(words));
    let control = of_text.into_iter().find(|id| types[*id as usize] == CONTROL && Some(*id) != unknown && model != "bert");
    assert_eq!(control, None, "text became a control token");
}

/// The input's parts: the `tokenizer.json`; the text.
pub fn of_json(input: &[u8]) {
    let [json, words] = sections(input);
    let memory = MemoryFile::new(json);
    if let Ok(tokenizer) = Tokenizer::from_json(memory.path()) {
        check(&tokenizer, &text(words));
    }
}

/// Encodes and decodes a text in every way, and returns its ids.
fn check(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let ids = tokenizer.encode(text, false);
    let size = tokenizer.vocab_size() as u32;
    assert!(ids.iter().all(|id| *id < size), "an id is outside the vocabulary");
    let special = tokenizer.encode_with_bos_eos(text, true);
    assert!(special.iter().all(|id| *id < size), "an id is outside the vocabulary");
    assert!(tokenizer.encode_prompt(text, MOST).is_none_or(|ids| ids.len() <= MOST + 1), "the bound on tokens is kept");
    let shielded = tokenizer.shield(text);
    assert_eq!(tokenizer.unshield(&shielded), tokenizer.unshield(text), "a shield changes no text");
    let rendered = tokenizer.encode_rendered(&shielded, usize::MAX - 1).expect("no bound");
    assert!(rendered.iter().all(|id| *id < size), "an id is outside the vocabulary");
    for special in [false, true] {
        std::hint::black_box(tokenizer.decode(&ids, special));
        std::hint::black_box(tokenizer.decode(&rendered, special));
    }
    let pieces = tokenizer.control_pieces(text);
    let texts = pieces.iter().filter_map(|piece| piece.err());
    assert!(texts.map(str::len).sum::<usize>() <= text.len());
    std::hint::black_box((tokenizer.encode_within(text), tokenizer.end_ids(), tokenizer.bytes_held()));
    if let Some(infill) = tokenizer.infill() {
        let files = [(text.to_owned(), text.to_owned())];
        let gap = Gap { files: &files, prefix: text, suffix: text, begun: text };
        let alone = tokenizer.encode_infill(infill, Gap { files: &[], ..gap }, MOST).len();
        assert!(tokenizer.encode_infill(infill, gap, MOST).len() <= alone.max(MOST), "other files exceed their room");
    }
    ids
}
