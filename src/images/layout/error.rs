//! Sizes that a model does not read.

/// Why a model reads no picture of this size. The texts are for clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("the picture has no pixels: send at least 1 × 1")]
    Empty,
    #[error("the picture is {width} × {height} pixels, and one side may be at most 200 times the other: crop it or send it in parts")]
    TooNarrow { width: u32, height: u32 },
    #[error("the picture is {width} × {height} pixels, and this model's side is at most {most} pixels: send a smaller one")]
    TooLong { width: u32, height: u32, most: u32 },
}
