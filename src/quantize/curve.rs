//! Encodes the types with four-bit codes for levels on a curve: IQ4_NL and IQ4_XS.

use crate::rounding::{half_bits, inverse, to_half};
use crate::symmetric::{Levels, Scales, fit, levels, scales};
use model::codebook::IQ4_LEVELS;

/// The levels of the IQ4 types.
struct Curve;

/// The midpoint between each level and the next.
const MIDDLES: [f32; 15] = {
    let (mut out, mut i) = ([0.0; 15], 0);
    while i < 15 {
        out[i] = (IQ4_LEVELS[i] as f32 + IQ4_LEVELS[i + 1] as f32) / 2.0;
        i += 1;
    }
    out
};

impl Levels for Curve {
    const LOWEST: f32 = IQ4_LEVELS[0] as f32;
    const HIGHEST: f32 = IQ4_LEVELS[15] as f32;
    const STEP: f32 = 0.015;

    /// Adds the distances of all levels below x. Has no branch, so that it compiles to vector code.
    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        let mut level = Self::LOWEST;
        for i in 0..15 {
            level += if x > MIDDLES[i] { f32::from(IQ4_LEVELS[i + 1]) - f32::from(IQ4_LEVELS[i]) } else { 0.0 };
        }
        level
    }
}

fn code(level: f32) -> u8 {
    IQ4_LEVELS.iter().position(|&known| f32::from(known) == level).unwrap_or(0) as u8
}

fn put_nibbles(levels: &[f32], out: &mut [u8]) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = code(levels[j]) | code(levels[j + 16]) << 4;
    }
}

pub fn iq4_nl(x: &[f32; 32], out: &mut [u8; 18]) {
    let d = to_half(fit::<Curve>(x));
    let inverse = inverse(d);
    out[..2].copy_from_slice(&half_bits(d).to_le_bytes());
    put_nibbles(&x.map(|x| Curve::nearest(x * inverse)), &mut out[2..]);
}

pub fn iq4_xs(x: &[f32; 256], out: &mut [u8; 136]) {
    let scales: Scales<8> = scales::<Curve, 8>(x, -32, 31);
    let levels = levels::<Curve, 8>(x, &scales);
    out.fill(0);
    out[..2].copy_from_slice(&half_bits(scales.d).to_le_bytes());
    let mut high = 0u16;
    for (group, scale) in scales.of.into_iter().enumerate() {
        let scale = (scale + 32) as u8;
        high |= u16::from(scale >> 4) << (2 * group);
        out[4 + group / 2] |= (scale & 15) << (group % 2 * 4);
        put_nibbles(&levels[32 * group..][..32], &mut out[8 + 16 * group..][..16]);
    }
    out[2..4].copy_from_slice(&high.to_le_bytes());
}
