//! Rounds as the formulas of the types require.

use half::f16;

/// The bits of the nearest half-precision number, with ties to even.
pub fn half_bits(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// The half-precision number nearest to `x`, as float32.
pub fn to_half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Converts to an integer as x86-64 does: rounds towards zero, and turns a number that does not fit into the smallest integer. ggml's
/// results have these bits if a scale's inverse overflows.
pub fn truncated(x: f32) -> i32 {
    // -2^31 fits, and 2^31 is the smallest positive float that does not. A NaN does not fit either.
    if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN }
}

/// The inverse of a scale, or 0 for 0.
pub fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// 1.5 · 2^23. Adding it to a summand below 2^22 leaves a sum without a fraction.
const SHIFT: f32 = 12_582_912.0;

/// Rounds to the nearest integer, with ties to even, and clamps to the bounds. Uses two additions, which compile to vector code on every
/// processor.
#[inline(always)]
pub fn nearest_within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + SHIFT) - SHIFT
}
