//! Encodes blocks of 256 weights that are -1, 0 or 1 times a scale: TQ1_0, TQ2_0.

use crate::legacy::largest;
use crate::rounding::{half_bits, inverse, truncated};

/// The scale, and each weight's code (0, 1 or 2).
fn codes(x: &[f32; 256]) -> (f32, [u8; 256]) {
    let d = largest(x).abs();
    let id = inverse(d);
    (d, x.map(|x| (truncated((x * id).round()) + 1) as u8))
}

/// Five base-3 digits as a fraction of 256, rounded up. Multiplying by 3 shifts the first digit out.
fn fraction(value: u16) -> u8 {
    (value * 256).div_ceil(243) as u8
}

/// Encodes five digits per byte: weights 0..160 in 32 bytes, 160..240 in 16 bytes, and the last 16 in 4 bytes of four digits.
pub fn tq1_0(x: &[f32; 256], out: &mut [u8; 54]) {
    let (d, codes) = codes(x);
    let digits =
        |first: usize, stride: usize, count: usize| (0..count).fold(0u16, |value, n| value * 3 + u16::from(codes[first + n * stride]));
    for (m, byte) in out[..32].iter_mut().enumerate() {
        *byte = fraction(digits(m, 32, 5));
    }
    for m in 0..16 {
        out[32 + m] = fraction(digits(160 + m, 16, 5));
    }
    for m in 0..4 {
        // the fifth digit of these bytes is 0
        out[48 + m] = fraction(digits(240 + m, 4, 4) * 3);
    }
    out[52..].copy_from_slice(&half_bits(d).to_le_bytes());
}

/// Encodes two bits per weight. Byte m of each half's 32 bytes holds the weights m, m + 32, m + 64 and m + 96 of the half's 128.
pub fn tq2_0(x: &[f32; 256], out: &mut [u8; 66]) {
    let (d, codes) = codes(x);
    for (half, bytes) in out[..64].chunks_exact_mut(32).enumerate() {
        for (m, byte) in bytes.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, n| byte | (codes[half * 128 + m + n * 32] & 3) << (2 * n));
        }
    }
    out[64..].copy_from_slice(&half_bits(d).to_le_bytes());
}
