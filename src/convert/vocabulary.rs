//! The vocabulary of a checkpoint, as the keys `tokenizer.ggml.*`.

use std::path::Path;

use gguf::Value;

use crate::config::Config;
use crate::error::Fallible;

/// A vocabulary, and what the keys cannot say of it.
pub struct Vocabulary {
    pub pairs: Vec<(String, Value)>,
    pub notes: Vec<String>,
}

pub fn read(_dir: &Path, _config: &Config, _arch: &str, _rows: u64) -> Fallible<Vocabulary> {
    Ok(Vocabulary { pairs: vec![("tokenizer.ggml.model".into(), "no_vocab".into())], notes: Vec::new() })
}
