//! How the formulas round.

use half::f16;

/// The bits of the nearest half-precision number; ties go to even.
pub fn half_bits(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// A half-precision number that is nearest to `x`, as float32.
pub fn to_half(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// Converts to an integer as x86-64 does: towards zero, and a number that does not fit becomes the least integer. ggml's results have
/// these bits where a scale's inverse overflows.
pub fn truncated(x: f32) -> i32 {
    // -2^31 fits; 2^31 is the least float that does not. A NaN fits nowhere.
    if (-2_147_483_648.0..2_147_483_648.0).contains(&x) { x as i32 } else { i32::MIN }
}

/// The inverse of a scale; 0 for 0.
pub fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// 1.5 · 2^23: the sum with it has no fraction, for summands below 2^22.
const SHIFT: f32 = 12_582_912.0;

/// Rounds to the nearest integer, ties to even, and holds it within bounds. Two additions, which become vector code on every processor.
#[inline(always)]
pub fn nearest_within(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > low { x } else { low };
    let x = if x < high { x } else { high };
    (x + SHIFT) - SHIFT
}
