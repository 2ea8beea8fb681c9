//! [`QuantizeError`]: why a file could not be quantised.

use std::path::PathBuf;

use gguf::GgufError;

/// Why a file could not be quantised. No output file is left behind.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    #[error("tensor {tensor}: weight {index} is {value}: only finite weights can be quantised")]
    NotFinite { tensor: String, index: u64, value: f32 },
    #[error("tensor {tensor}: a weight near {index} is too large for {type_name} ({value:e}): choose BF16 or F32")]
    TooLarge { tensor: String, index: u64, value: f32, type_name: &'static str },
    #[error("tensor {tensor} is of type {type_name}, which cannot be dequantised: expected a type that the engines compute with")]
    Source { tensor: String, type_name: &'static str },
    #[error("{0}")]
    File(#[from] GgufError),
    #[error("{} exists: choose another output or add --force", .0.display())]
    Exists(PathBuf),
    #[error("{} is the source itself: choose another output", .0.display())]
    SameFile(PathBuf),
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: std::io::Error },
}
