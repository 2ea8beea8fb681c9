//! [`ConvertError`]

use std::path::{Path, PathBuf};

use quantize::QuantizeError;

/// Why a checkpoint could not be converted. No output file exists then.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("{}: {fault}", path.display())]
    File { path: PathBuf, fault: String },
    /// A fault of what the checkpoint's files say together.
    #[error("{0}")]
    Checkpoint(String),
    #[error("{0}")]
    Output(#[from] QuantizeError),
}

pub type Fallible<T> = Result<T, ConvertError>;

/// A fault of one file.
pub fn fault<T>(path: &Path, fault: impl Into<String>) -> Fallible<T> {
    Err(ConvertError::File { path: path.to_owned(), fault: fault.into() })
}

/// A fault of what the checkpoint's files say together.
pub fn wrong<T>(fault: impl Into<String>) -> Fallible<T> {
    Err(ConvertError::Checkpoint(fault.into()))
}
