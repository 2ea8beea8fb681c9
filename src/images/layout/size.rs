//! Sizes: width and height.

/// A size's width to height.
pub fn aspect((width, height): (u32, u32)) -> f64 {
    f64::from(width) / f64::from(height)
}

/// Number of pixels or cells.
pub fn area((width, height): (u32, u32)) -> u64 {
    u64::from(width) * u64::from(height)
}
