//! Dequantises the code-book types (IQ1 to IQ4, MXFP4, NVFP4) and the ternary types (TQ) exactly, in scalar code.
//!
//! A block of an IQ1, IQ2 or IQ3 type stores indexes into a code book, whose entries are four or eight magnitudes, and stores the signs
//! separately. The format defines the books. `cuda/quant/books/` holds them for both backends, each as one string of hexadecimal digits. As
//! in [`dequant`](crate::dequant), results have the bits that the `gguf` Python package gives. No product here is rounded: a half has 11
//! significant bits, and a scale times a level has at most 13.
//!
//! In the comments on block functions, `d` is the block's scale, `s` the scale of a group, and `q` the stored code of a weight.

use crate::dequant::{f16_to_f32, half_at};

/// Parses a book. The four digits of an entry hold the indexes of its elements into the type's levels, the first element in the lowest
/// bits.
const fn entries<const N: usize>(file: &str) -> [u16; N] {
    let (text, mut out, mut at, mut digits, mut quoted) = (file.as_bytes(), [0u16; N], 0, 0, false);
    while at < text.len() {
        let byte = text[at];
        if byte == b'"' {
            quoted = !quoted;
        } else if quoted {
            let digit = if byte.is_ascii_digit() { byte - b'0' } else { byte - b'a' + 10 };
            out[digits / 4] = out[digits / 4] << 4 | digit as u16;
            digits += 1;
        }
        at += 1;
    }
    assert!(digits == 4 * N, "the book does not have the expected number of entries");
    out
}

/// Replaces the indexes in each entry of `E` elements by their levels.
const fn spread<const N: usize, const E: usize>(entries: &[u16; N], levels: &[u8]) -> [[u8; E]; N] {
    let (mut out, bits, mut i) = ([[0; E]; N], 16 / E, 0);
    while i < N {
        let mut j = 0;
        while j < E {
            out[i][j] = levels[(entries[i] >> (bits * j)) as usize & ((1 << bits) - 1)];
            j += 1;
        }
        i += 1;
    }
    out
}

macro_rules! book {
    ($indexes:ident, $levels:ident, $entries:literal of $elements:literal, $file:literal, $values:expr) => {
        pub const $indexes: [u16; $entries] = entries(include_str!(concat!("../../cuda/quant/books/", $file)));
        pub static $levels: [[u8; $elements]; $entries] = spread(&$indexes, &$values);
    };
}

/// The magnitudes of the IQ2 types.
pub const IQ2_LEVELS: [u8; 3] = [8, 25, 43];
pub const IQ3_XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
pub const IQ3_S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// The shift of an IQ1 type. Added to its levels -1, 0 and 1, or subtracted from them.
pub const IQ1_DELTA: f32 = 0.125;

// The digits 0, 1 and 2 of an IQ1 book mean the levels -1, 0 and 1.
book!(IQ1, IQ1_BOOK, 2048 of 8, "iq1_s.inc", [0, 1, 2]);
book!(IQ2_XXS, IQ2_XXS_BOOK, 256 of 8, "iq2_xxs.inc", IQ2_LEVELS);
book!(IQ2_XS, IQ2_XS_BOOK, 512 of 8, "iq2_xs.inc", IQ2_LEVELS);
book!(IQ2_S, IQ2_S_BOOK, 1024 of 8, "iq2_s.inc", IQ2_LEVELS);
book!(IQ3_XXS, IQ3_XXS_BOOK, 256 of 4, "iq3_xxs.inc", IQ3_XXS_LEVELS);
book!(IQ3_S, IQ3_S_BOOK, 512 of 4, "iq3_s.inc", IQ3_S_LEVELS);

/// The levels of IQ4_NL and IQ4_XS, by code.
pub const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// The levels of MXFP4 and NVFP4, by code: twice the e2m1 number (OCP Microscaling Formats 1.0).
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Completes seven stored signs to eight. The number of minus signs is always even.
pub static EVEN_SIGNS: [u8; 128] = {
    let (mut out, mut i) = ([0u8; 128], 0u8);
    while i < 128 {
        out[i as usize] = i | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    out
};

/// Half of an e8m0 scale. In return, MXFP4's levels above are doubled.
#[inline(always)]
pub const fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { ((e - 1) as u32) << 23 })
}

/// Halves of the unsigned e4m3 scales of NVFP4: four bits of exponent, three of mantissa. 0x7f is 0. Otherwise the highest bit is not read.
/// In return, the levels are doubled.
pub static UE4M3_HALVES: [f32; 256] = {
    let (mut out, mut i) = ([0f32; 256], 0);
    while i < 256 {
        let (exponent, mantissa) = (i as u32 >> 3 & 15, (i & 7) as f32);
        // 2^(exponent - 8)
        let unit = f32::from_bits((exponent + 119) << 23);
        out[i] = if exponent == 0 { mantissa / 1024.0 } else { (1.0 + mantissa / 8.0) * unit };
        i += 1;
    }
    out[0x7f] = 0.0;
    out
};

#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The sign bits of eight floats, by the byte that stores them. Shifting each bit into place instead would take as long as the rest of the
/// dequantisation.
static SIGN_BITS: [[u32; 8]; 256] = {
    let (mut out, mut i) = ([[0; 8]; 256], 0);
    while i < 256 * 8 {
        out[i / 8][i % 8] = ((i as u32 / 8) >> (i % 8) & 1) << 31;
        i += 1;
    }
    out
};

/// Writes `scale` times the levels. The lowest bits of `signs` hold their signs.
#[inline(always)]
fn signed<const E: usize>(out: &mut [f32], scale: f32, levels: &[u8; E], signs: u8) {
    let (out, bits) = (&mut out[..E], &SIGN_BITS[usize::from(signs)]);
    for j in 0..E {
        out[j] = f32::from_bits((scale * f32::from(levels[j])).to_bits() ^ bits[j]);
    }
}

#[inline(always)]
fn nibbles(out: &mut [f32], scale: f32, codes: &[u8], levels: &[i8; 16]) {
    for j in 0..16 {
        out[j] = scale * f32::from(levels[usize::from(codes[j] & 15)]);
        out[j + 16] = scale * f32::from(levels[usize::from(codes[j] >> 4)]);
    }
}

/// A block of a scale in f16 and 16 bytes of nibbles: weight = d · level.
#[inline(always)]
pub fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    nibbles(out, half_at(block, 0), &block[2..], &IQ4_LEVELS);
}

/// A block of a scale in e8m0 and 16 bytes of nibbles: weight = d / 2 · level.
#[inline(always)]
pub fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    nibbles(out, e8m0_half(block[0]), &block[1..], &MXFP4_LEVELS);
}

/// A block of four scales in e4m3, one per 16 weights, then eight bytes of nibbles for each scale: weight = d / 2 · level.
#[inline(always)]
pub fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for group in 0..4 {
        let (scale, out) = (UE4M3_HALVES[usize::from(block[group])], &mut out[16 * group..][..16]);
        for j in 0..8 {
            let byte = block[4 + 8 * group + j];
            out[j] = scale * f32::from(MXFP4_LEVELS[usize::from(byte & 15)]);
            out[j + 8] = scale * f32::from(MXFP4_LEVELS[usize::from(byte >> 4)]);
        }
    }
}

/// The scale of group `group` of IQ4_XS. The low four bits are nibbles that start at byte 4, the high two bits are in the word at byte 2,
/// and the offset is 32.
#[inline(always)]
pub fn iq4_xs_scale(block: &[u8; 136], group: usize) -> i8 {
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * group) & 3) as u8;
    (low | high << 4) as i8 - 32
}

/// Scale f16, 8 scales of 6 bits, nibbles as in IQ4_NL: weight = d · s · level.
#[inline(always)]
pub fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let scale = d * f32::from(iq4_xs_scale(block, group));
        nibbles(&mut out[32 * group..], scale, &block[8 + 16 * group..], &IQ4_LEVELS);
    }
}

/// Scale f16, then for each 32 weights: four entries of one byte, four times seven signs and a scale of 4 bits.
/// weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let (at, word) = (2 + 8 * group, word_at(block, 6 + 8 * group));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for k in 0..4 {
            let signs = EVEN_SIGNS[(word >> (7 * k)) as usize & 127];
            signed(&mut out[32 * group + 8 * k..], scale, &IQ2_XXS_BOOK[usize::from(block[at + k])], signs);
        }
    }
}

/// The two scales in a byte of IQ2_XS and IQ2_S. Each applies to 16 weights.
#[inline(always)]
fn iq2_scales(d: f32, byte: u8) -> [f32; 2] {
    [byte & 15, byte >> 4].map(|s| d * (0.5 + f32::from(s)) * 0.25)
}

/// Scale f16, 32 words of an entry (9 bits) and seven signs, 16 scales of 4 bits: weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let scales = iq2_scales(d, block[66 + group]);
        for k in 0..4 {
            let at = 2 + 8 * group + 2 * k;
            let word = u16::from_le_bytes([block[at], block[at + 1]]);
            let signs = EVEN_SIGNS[usize::from(word >> 9)];
            signed(&mut out[32 * group + 8 * k..], scales[k / 2], &IQ2_XS_BOOK[usize::from(word & 511)], signs);
        }
    }
}

/// Scale f16, the low bytes of 32 entries, 32 bytes of signs, the two high bits of each entry, 16 scales of 4 bits:
/// weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let (scales, tops) = (iq2_scales(d, block[74 + group]), block[66 + group]);
        for k in 0..4 {
            let entry = usize::from(block[2 + 4 * group + k]) | usize::from(tops >> (2 * k) & 3) << 8;
            signed(&mut out[32 * group + 8 * k..], scales[k / 2], &IQ2_S_BOOK[entry], block[34 + 4 * group + k]);
        }
    }
}

/// Scale f16, 64 entries of one byte, then for each 32 weights four times seven signs and a scale of 4 bits:
/// weight = d · (s + ½) / 2 · level.
#[inline(always)]
pub fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let word = word_at(block, 66 + 4 * group);
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for k in 0..8 {
            let signs = EVEN_SIGNS[(word >> (k / 2 * 7)) as usize & 127] >> (k % 2 * 4);
            signed(&mut out[32 * group + 4 * k..], scale, &IQ3_XXS_BOOK[usize::from(block[2 + 8 * group + k])], signs);
        }
    }
}

/// Scale f16, the low bytes of 64 entries, their ninth bits, 32 bytes of signs, 8 scales of 4 bits: weight = d · (2 s + 1) · level.
#[inline(always)]
pub fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let (tops, s) = (block[66 + group], block[106 + group / 2] >> (group % 2 * 4) & 15);
        let scale = d * f32::from(1 + 2 * s);
        for k in 0..8 {
            let entry = usize::from(block[2 + 8 * group + k]) | usize::from(tops >> k & 1) << 8;
            signed(&mut out[32 * group + 4 * k..], scale, &IQ3_S_BOOK[entry], block[74 + 4 * group + k / 2] >> (k % 2 * 4));
        }
    }
}

/// Writes `scale` times the levels, each shifted by `delta`.
#[inline(always)]
fn shifted(out: &mut [f32], scale: f32, digits: &[u8; 8], delta: f32) {
    let out = &mut out[..8];
    for j in 0..8 {
        out[j] = scale * (f32::from(digits[j] as i8 - 1) + delta);
    }
}

/// Scale f16, the low bytes of 32 entries, then for each 32 weights a word with the entries' high bits, a scale of 3 bits and the sign of
/// the shift: weight = d · (2 s + 1) · (level ± ⅛).
#[inline(always)]
pub fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let word = u16::from_le_bytes([block[34 + 2 * group], block[35 + 2 * group]]);
        let delta = if word & 0x8000 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        for k in 0..4 {
            let entry = usize::from(block[2 + 4 * group + k]) | usize::from(word >> (3 * k) & 7) << 8;
            shifted(&mut out[32 * group + 8 * k..], scale, &IQ1_BOOK[entry], delta);
        }
    }
}

/// The scale of an IQ1_M block, as a half. Its nibbles are the highest bits of the four words of group scales.
#[inline(always)]
pub fn iq1_m_half(block: &[u8; 56]) -> u16 {
    let nibble = |i: usize| u16::from(block[49 + 2 * i] >> 4);
    nibble(0) | nibble(1) << 4 | nibble(2) << 8 | nibble(3) << 12
}

/// The low bytes of 32 entries, a nibble per entry with its three high bits and the sign of the shift, 16 scales of 3 bits:
/// weight = d · (2 s + 1) · (level ± ⅛).
#[inline(always)]
pub fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let d = f16_to_f32(iq1_m_half(block));
    for group in 0..16 {
        let scales = u16::from_le_bytes([block[48 + group / 4 * 2], block[49 + group / 4 * 2]]);
        let scale = d * f32::from(2 * (scales >> (group % 4 * 3) & 7) + 1);
        for k in 0..2 {
            let high = block[32 + group] >> (4 * k);
            let entry = usize::from(block[2 * group + k]) | usize::from(high & 7) << 8;
            let delta = if high & 8 == 0 { IQ1_DELTA } else { -IQ1_DELTA };
            shifted(&mut out[16 * group + 8 * k..], scale, &IQ1_BOOK[entry], delta);
        }
    }
}

/// Five ternary digits per byte, which are the first digits of the fraction byte / 256 in base 3. 32 bytes hold 160 weights, 16 bytes hold
/// 80, and 4 bytes of four digits hold 16. The scale f16 is at the end: weight = d · (digit - 1).
#[inline(always)]
pub fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half_at(block, 52);
    let mut digits = |from: usize, at: usize, bytes: usize, count: usize| {
        let mut power = 1u8;
        for n in 0..count {
            for j in 0..bytes {
                let digit = ((u16::from(block[from + j].wrapping_mul(power)) * 3) >> 8) as i8;
                out[at + n * bytes + j] = d * f32::from(digit - 1);
            }
            power = power.wrapping_mul(3);
        }
    };
    digits(0, 0, 32, 5);
    digits(32, 160, 16, 5);
    digits(48, 240, 4, 4);
}

/// 64 bytes of 2-bit codes, scale f16: weight = d · (q - 1).
#[inline(always)]
pub fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 64);
    for group in 0..8 {
        let (bytes, shift) = (group / 4 * 32, group % 4 * 2);
        for l in 0..32 {
            out[32 * group + l] = d * f32::from((block[bytes + l] >> shift & 3) as i8 - 1);
        }
    }
}
