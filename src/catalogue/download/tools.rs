//! The programs, addresses and credentials that downloads take from the environment.

use std::time::Duration;

use super::error::PullError;
use config::check_url;

/// Programs, addresses and credentials that downloads use.
#[derive(Clone, Debug)]
pub struct Tools {
    /// The Python interpreter whose pip downloads wheels.
    pub python: String,
    pub hf_endpoint: String,
    /// Sent only to the host of `hf_endpoint`.
    pub hf_token: Option<String>,
    /// The pause after the first failed attempt. Doubles after each further one. Zero: a listing is asked for only once.
    pub backoff: Duration,
}

impl Tools {
    /// Uses `python3` and the environment variables `HF_ENDPOINT` and `HF_TOKEN`.
    pub fn from_env() -> Self {
        let var = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        Self {
            python: "python3".into(),
            hf_endpoint: var("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into()),
            hf_token: var("HF_TOKEN"),
            backoff: Duration::from_millis(500),
        }
    }

    /// The hub's address, checked, without a trailing slash.
    pub(super) fn hub(&self) -> Result<&str, PullError> {
        let endpoint = self.hf_endpoint.trim_end_matches('/');
        check_url(endpoint).map_err(|fault| PullError::Refused(format!("HF_ENDPOINT: {fault}")))?;
        Ok(endpoint)
    }
}
