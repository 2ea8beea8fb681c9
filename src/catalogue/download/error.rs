//! Errors of downloads.

use std::io::ErrorKind;
use std::path::Path;

/// Why a model could not be fetched: one line, except for pip's own output.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// Another attempt may succeed. The bytes received so far are kept.
    #[error("{0}")]
    Network(String),
    #[error("{0}")]
    Refused(String),
    #[error("the download has {found} bytes, expected {expected}: it was deleted")]
    Size { expected: u64, found: String },
    #[error("the download's sha256 is {found}, expected {expected}: it was deleted")]
    Digest { expected: String, found: String },
    #[error("{what}: {error}")]
    Disk { what: String, error: std::io::Error },
    #[error("{0}")]
    Python(String),
    #[error("nobody waits for the download any more: the next pull continues it")]
    GivenUp,
}

impl PullError {
    pub fn disk(path: &Path, error: std::io::Error) -> Self {
        let hint = match error.kind() {
            ErrorKind::StorageFull => " (the bytes received so far are kept: free some space and pull again)",
            _ => "",
        };
        Self::Disk { what: format!("{}{hint}", path.display()), error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_what_to_do() {
        let error = PullError::disk(Path::new("/x/model.gguf.partial"), ErrorKind::StorageFull.into()).to_string();
        assert!(error.starts_with("/x/model.gguf.partial (the bytes") && error.contains("free some space"), "{error}");
    }
}
