//! Encodes blocks of 32 weights with a half-precision scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. Each type has one formula. Its products and sums
//! are rounded one by one, so that the bits are those of ggml.

use crate::rounding::{half_bits, inverse, truncated};

/// The weight of largest magnitude, with its sign. The first one if several are equal.
pub fn largest(x: &[f32]) -> f32 {
    let mut largest = 0f32;
    for &x in x {
        if x.abs() > largest.abs() {
            largest = x;
        }
    }
    largest
}

/// The smallest and the largest weight.
fn range(x: &[f32; 32]) -> (f32, f32) {
    let (mut min, mut max) = (f32::MAX, -f32::MAX);
    for &x in x {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
    }
    (min, max)
}

fn put_half(out: &mut [u8], at: usize, x: f32) {
    out[at..at + 2].copy_from_slice(&half_bits(x).to_le_bytes());
}

/// The scale and the codes of a type without a minimum. The largest weight becomes the lowest code, so the scale may be negative.
fn signed_codes(x: &[f32; 32], half: f32) -> (f32, [u8; 32]) {
    let d = largest(x) / -half;
    let id = inverse(d);
    let most = 2 * half as i8 - 1;
    (d, x.map(|x| (truncated(x * id + (half + 0.5)) as i8).min(most) as u8))
}

/// The scale, the minimum and the codes of a type with a minimum.
fn unsigned_codes(x: &[f32; 32], levels: f32, code: impl Fn(f32) -> u8) -> (f32, f32, [u8; 32]) {
    let (min, max) = range(x);
    let d = (max - min) / levels;
    let id = inverse(d);
    (d, min, x.map(|x| code((x - min) * id + 0.5)))
}

/// Packs the low four bits of the codes. The second half of the codes goes to the high nibbles.
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = codes[j] & 15 | codes[j + 16] << 4;
    }
}

/// Packs the fifth bits of the codes.
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes.iter().enumerate().fold(0u32, |bits, (j, &code)| bits | u32::from(code >> 4 & 1) << j);
    bits.to_le_bytes()
}

pub fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) {
    let (d, codes) = signed_codes(x, 8.0);
    put_half(out, 0, d);
    put_nibbles(&codes, &mut out[2..]);
}

pub fn q4_1(x: &[f32; 32], out: &mut [u8; 20]) {
    let (d, min, codes) = unsigned_codes(x, 15.0, |x| (truncated(x) as i8).min(15) as u8);
    put_half(out, 0, d);
    put_half(out, 2, min);
    put_nibbles(&codes, &mut out[4..]);
}

pub fn q5_0(x: &[f32; 32], out: &mut [u8; 22]) {
    let (d, codes) = signed_codes(x, 16.0);
    put_half(out, 0, d);
    out[2..6].copy_from_slice(&fifth_bits(&codes));
    put_nibbles(&codes, &mut out[6..]);
}

pub fn q5_1(x: &[f32; 32], out: &mut [u8; 24]) {
    let (d, min, codes) = unsigned_codes(x, 31.0, |x| truncated(x) as u8);
    put_half(out, 0, d);
    put_half(out, 2, min);
    out[4..8].copy_from_slice(&fifth_bits(&codes));
    put_nibbles(&codes, &mut out[8..]);
}

pub fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) {
    let d = largest(x).abs() / 127.0;
    let id = inverse(d);
    put_half(out, 0, d);
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = truncated((x * id).round()) as u8;
    }
}
