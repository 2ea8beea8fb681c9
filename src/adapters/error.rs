//! [`AdapterError`]: why an adapter cannot be used.

use std::path::{Path, PathBuf};

/// A file that is not an adapter of the model.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct AdapterError {
    pub path: PathBuf,
    /// What is wrong: it names the tensor or the field.
    pub fault: String,
}

impl AdapterError {
    pub fn new(path: &Path, fault: impl Into<String>) -> Self {
        Self { path: path.to_owned(), fault: fault.into() }
    }
}
