//! The error of a malformed file.

use std::path::{Path, PathBuf};

/// A file that is not a valid GGUF file: which file, at which byte, and what is wrong there.
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
