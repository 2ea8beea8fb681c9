//! Why a picture cannot be read.

use std::sync::Arc;

use super::{MAX_PICTURES, MAX_PIXELS};
use images::{DecodeError, LayoutError};

/// Why a picture of a request cannot be read. The texts are for clients.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PictureError {
    #[error("the model `{0}` takes no pictures: use a model whose capabilities have `vision`, or give this one a mmproj file")]
    NoEncoder(String),
    #[error("the prompt has more than {MAX_PICTURES} pictures: leave some out")]
    TooMany,
    #[error("the prompt's pictures have more than {MAX_PIXELS} pixels: send fewer or smaller ones")]
    TooManyPixels,
    #[error("the model reads no picture of this size: {0}")]
    Grid(String),
    #[error(
        "the picture becomes {rows} rows, which one step must hold, and a step holds {most}: send a smaller picture, or raise \
         engine.max_batch_tokens"
    )]
    TooManyRows { rows: usize, most: usize },
    #[error("pictures are not possible here: send the text alone")]
    OnlyText,
    #[error("the picture at this address has not been fetched: send its bytes in base64")]
    NotFetched,
    #[error("{0}")]
    Invalid(Arc<str>),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error("too many pictures wait to be encoded: try again later")]
    QueueFull,
    #[error("the picture encoder has stopped")]
    Stopped,
    #[error("the picture cannot be encoded: {0}")]
    Encoder(String),
}

impl PictureError {
    /// Whether a smaller request would be served.
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooMany | Self::TooManyPixels) || matches!(self, Self::Decode(error) if error.is_too_large())
    }
}
