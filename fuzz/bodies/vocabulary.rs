//! A vocabulary for bodies that need one but do not fuzz it: bytes, some longer tokens of JSON, and ChatML's markers.

use std::sync::{Arc, LazyLock};

use gguf::{GgufBuilder, GgufFile};
use model::testing::byte_char;
use tokenizer::Tokenizer;

use crate::memory_file::MemoryFile;

const LONGER: [&str; 14] = ["the", " the", "true", "null", "{\"", "\":", "\": \"", "\",", "\"}", "}}", "[]", "  ", "\n\n", "0.5"];
const CONTROL: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>"];

pub static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let file = MemoryFile::new(&metadata().build());
    let file = GgufFile::open(file.path()).expect("a GGUF file");
    Arc::new(Tokenizer::from_gguf(&file).expect("a vocabulary"))
});

/// The vocabulary as a GGUF file's metadata.
pub fn metadata() -> GgufBuilder {
    let spelt = |text: &str| text.bytes().map(byte_char).collect::<String>();
    let mut tokens: Vec<String> = (0..=u8::MAX).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(LONGER.map(spelt));
    let mut types = vec![1; tokens.len()];
    tokens.extend(CONTROL.map(str::to_owned));
    types.resize(tokens.len(), 3);
    let end = tokens.len() as u32 - 2;
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("tokenizer.ggml.model", "gpt2")
        .kv("tokenizer.ggml.pre", "gpt-2")
        .kv("tokenizer.ggml.tokens", tokens)
        .kv("tokenizer.ggml.token_type", types)
        .kv("tokenizer.ggml.merges", vec!["{ \"".to_owned(), "\" :".to_owned()])
        .kv("tokenizer.ggml.eos_token_id", end)
}
