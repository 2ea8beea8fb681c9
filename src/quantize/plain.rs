//! Encodes the types without blocks: F32, F16, BF16.

use crate::rounding::half_bits;

pub fn f32(x: &[f32; 1], out: &mut [u8; 4]) {
    *out = x[0].to_le_bytes();
}

pub fn f16(x: &[f32; 1], out: &mut [u8; 2]) {
    *out = half_bits(x[0]).to_le_bytes();
}

/// Takes the upper half of the bits, rounded to nearest with ties to even.
pub fn bf16(x: &[f32; 1], out: &mut [u8; 2]) {
    let bits = x[0].to_bits();
    *out = ((bits + (0x7fff + (bits >> 16 & 1))) >> 16).to_le_bytes()[..2].try_into().unwrap_or_default();
}
