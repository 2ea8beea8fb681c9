//! A file to download.

use config::Source;

/// One file of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The file's name in the store.
    pub name: String,
    /// The source of this file.
    pub source: Source,
    pub sha256: Option<String>,
    pub size: Option<u64>,
}
