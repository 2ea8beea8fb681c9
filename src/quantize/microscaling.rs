//! Encodes MXFP4: blocks of 32 weights with a power of two as their scale (OCP Microscaling Formats 1.0).

use crate::legacy::largest;
use crate::rounding::truncated;
use model::codebook::{MXFP4_LEVELS, e8m0_half};

/// Encodes a block. The exponent is that of the largest weight, minus 2, the exponent of the largest level.
pub fn mxfp4(x: &[f32; 32], out: &mut [u8; 17]) {
    let most = largest(x).abs();
    out[0] = if most > 0.0 { truncated(most.log2().floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = e8m0_half(out[0]);
    let codes = x.map(|x| code(x, scale));
    for j in 0..16 {
        out[1 + j] = codes[j] | codes[j + 16] << 4;
    }
}

/// The code of the nearest level. The first one if two levels are equally near.
fn code(x: f32, scale: f32) -> u8 {
    let (mut best, mut least) = (0, f32::MAX);
    for (code, &level) in MXFP4_LEVELS.iter().enumerate() {
        let error = (f32::from(level) * scale - x).abs();
        if error < least {
            (best, least) = (code, error);
        }
    }
    best as u8
}
