//! [`GgufError`]: what is wrong with a malformed file, and where.

use std::path::{Path, PathBuf};

/// A fault in a GGUF file: the file, the byte offset and a description.
#[derive(Debug, thiserror::Error)]
#[error("{path}: at byte {offset}: {fault}", path = .path.display())]
pub struct GgufError {
    pub path: PathBuf,
    pub offset: u64,
    pub fault: String,
}

impl GgufError {
    pub(crate) fn new(path: &Path, offset: u64, fault: impl Into<String>) -> Self {
        GgufError { path: path.to_owned(), offset, fault: fault.into() }
    }
}
