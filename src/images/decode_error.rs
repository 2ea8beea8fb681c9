//! Why a file gives no pixels.

use crate::Format;

/// Why a file gives no pixels. The texts are for clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the picture is empty: send the bytes of a PNG, JPEG, WebP or GIF file")]
    Empty,
    #[error("the bytes are of no known type: send a PNG, JPEG, WebP or GIF file")]
    Unknown,
    #[error("this is {0}, which is not read: send a PNG, JPEG, WebP or GIF file")]
    Unsupported(&'static str),
    #[error("the {format} picture of {bytes} bytes is truncated: send the whole file")]
    Truncated { format: Format, bytes: usize },
    #[error("the {format} picture is damaged ({reason}): save it again")]
    Damaged { format: Format, reason: String },
    #[error(
        "the {format} picture is {width} × {height} pixels, which are too many: send at most {max_pixels}, for example {side} × {side}"
    )]
    TooManyPixels { format: Format, width: u32, height: u32, max_pixels: u64, side: u64 },
    #[error("the {format} picture needs too much memory besides its pixels: save it again without metadata")]
    TooMuchMemory { format: Format },
}

impl DecodeError {
    /// Whether a smaller picture would be read (413), rather than none of this kind (400).
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::TooManyPixels { .. } | Self::TooMuchMemory { .. })
    }
}
