//! Helpers for tests of grammars in this crate and in crates above it.

use std::path::Path;
use std::sync::Arc;

use gguf::GgufFile;
use tokenizer::Tokenizer;

use crate::compile::Compiler;

/// A compiler over the vocabulary of a GGUF file.
pub fn compiler(vocabulary: &Path) -> (Compiler, Arc<Tokenizer>) {
    let file = GgufFile::open(vocabulary).expect("a GGUF file");
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file).expect("a vocabulary"));
    (Compiler::new(tokenizer.clone(), tokenizer.vocab_size()), tokenizer)
}
