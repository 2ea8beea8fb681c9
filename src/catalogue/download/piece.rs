//! A file to download.

use config::Source;

/// The name in the store of a model in one file.
pub const MODEL: &str = "model.gguf";
/// The name in the store of a model's picture encoder.
pub const MMPROJ: &str = "mmproj-model.gguf";

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
