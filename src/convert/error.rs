//! [`ConvertError`]: why a checkpoint could not be converted.

use std::path::{Path, PathBuf};

use quantize::QuantizeError;

/// Why a checkpoint could not be converted. No output file is left behind.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    #[error("{}: {fault}", path.display())]
    File { path: PathBuf, fault: String },
    /// The files of the checkpoint contradict each other or are incomplete.
    #[error("{0}")]
    Checkpoint(String),
    #[error("{0}")]
    Output(#[from] QuantizeError),
}

pub type Fallible<T> = Result<T, ConvertError>;

/// An error about one file.
pub fn fault<T>(path: &Path, fault: impl Into<String>) -> Fallible<T> {
    Err(ConvertError::File { path: path.to_owned(), fault: fault.into() })
}

/// An error about the checkpoint as a whole.
pub fn wrong<T>(fault: impl Into<String>) -> Fallible<T> {
    Err(ConvertError::Checkpoint(fault.into()))
}
