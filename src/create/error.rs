//! Why a model cannot be made.

use catalogue::PullError;

#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// No model has the name.
    #[error("model '{0}' not found")]
    NotFound(String),
    /// A known model is not on disk. Fetching it helps.
    #[error("the model `{0}` is not on disk: `penstock pull {0}` fetches it")]
    NotOnDisk(String),
    /// The recipe is wrong, or the store refuses it. A client may see why.
    #[error("{0}")]
    Refused(String),
    /// A file or the disk is at fault. The text may name paths of this machine.
    #[error("{0}")]
    Disk(String),
}

impl From<PullError> for CreateError {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Refused(text) => Self::Refused(text),
            other => Self::Disk(other.to_string()),
        }
    }
}
