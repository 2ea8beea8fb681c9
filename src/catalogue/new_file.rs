//! [`NewFile`]: a file on its way into the store.

use std::path::PathBuf;

/// A file that becomes a part of a stored model.
#[derive(Clone, Debug)]
pub struct NewFile {
    pub path: PathBuf,
    /// The file's name in the model's directory.
    pub name: String,
    pub sha256: String,
    pub size: u64,
    /// Whether the file is moved rather than linked.
    pub moves: bool,
}
