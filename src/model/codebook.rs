//! Exact scalar dequantisation of the code-book types: IQ1 … IQ4, MXFP4, and the ternary TQ types.
//!
//! A block of an IQ1, IQ2 or IQ3 type names entries of a book of four or eight magnitudes; signs come beside them. The books are
//! facts of the format; `cuda/quant/books/` holds them for both backends, one string of hexadecimal digits each. As in
//! [`dequant`](super::dequant), results have the bits that the `gguf` Python package gives; no product here is rounded, since a half
//! has 11 significant bits and a scale times a level at most 13.

use super::dequant::half_at;

/// The entries of a book: its elements' indexes into the type's levels, four digits an entry, the first element lowest.
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
    assert!(digits == 4 * N, "a book has all its entries");
    out
}

/// The levels that the indexes of `E` elements an entry stand for.
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
        pub(crate) static $indexes: [u16; $entries] = entries(include_str!(concat!("../../cuda/quant/books/", $file)));
        static $levels: [[u8; $elements]; $entries] = spread(&$indexes, &$values);
    };
}

/// Levels of the IQ2 types.
pub(crate) const IQ2_LEVELS: [u8; 3] = [8, 25, 43];
pub(crate) const IQ3_XXS_LEVELS: [u8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
pub(crate) const IQ3_S_LEVELS: [u8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
/// Added to an IQ1 type's levels of -1, 0 and 1, or taken from them.
pub(crate) const IQ1_DELTA: f32 = 0.125;

// an IQ1 level as a digit: one more than it stands for
book!(IQ1, IQ1_BOOK, 2048 of 8, "iq1_s.inc", [0, 1, 2]);
book!(IQ2_XXS, IQ2_XXS_BOOK, 256 of 8, "iq2_xxs.inc", IQ2_LEVELS);
book!(IQ2_XS, IQ2_XS_BOOK, 512 of 8, "iq2_xs.inc", IQ2_LEVELS);
book!(IQ2_S, IQ2_S_BOOK, 1024 of 8, "iq2_s.inc", IQ2_LEVELS);
book!(IQ3_XXS, IQ3_XXS_BOOK, 256 of 4, "iq3_xxs.inc", IQ3_XXS_LEVELS);
book!(IQ3_S, IQ3_S_BOOK, 512 of 4, "iq3_s.inc", IQ3_S_LEVELS);

/// Levels of IQ4_NL and IQ4_XS by code.
pub(crate) const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Levels of MXFP4 by code: twice an e2m1 number (OCP Microscaling Formats 1.0).
pub(crate) const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Eight signs stored as seven: their number is even.
pub(crate) static EVEN_SIGNS: [u8; 128] = {
    let (mut out, mut i) = ([0u8; 128], 0u8);
    while i < 128 {
        out[i as usize] = i | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    out
};

/// Half an e8m0 scale, since MXFP4's levels are doubled.
#[inline(always)]
pub(crate) fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

#[inline(always)]
fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The sign bits of eight floats by byte: a load, where shifts by lane would take as long as the weights themselves.
static SIGN_BITS: [[u32; 8]; 256] = {
    let (mut out, mut i) = ([[0; 8]; 256], 0);
    while i < 256 * 8 {
        out[i / 8][i % 8] = ((i as u32 / 8) >> (i % 8) & 1) << 31;
        i += 1;
    }
    out
};

/// `scale` times the levels, with the signs of `signs`' lowest bits.
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

/// scale f16, 16 bytes of nibbles: weight = d · level.
#[inline(always)]
pub(crate) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    nibbles(out, half_at(block, 0), &block[2..], &IQ4_LEVELS);
}

/// scale e8m0, 16 bytes of nibbles: weight = d / 2 · level.
#[inline(always)]
pub(crate) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    nibbles(out, e8m0_half(block[0]), &block[1..], &MXFP4_LEVELS);
}

/// The scale of group `group` of IQ4_XS: four low bits a nibble from byte 4 on, two high bits in the word at 2, offset 32.
#[inline(always)]
pub(crate) fn iq4_xs_scale(block: &[u8; 136], group: usize) -> i8 {
    let low = block[4 + group / 2] >> (group % 2 * 4) & 15;
    let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * group) & 3) as u8;
    (low | high << 4) as i8 - 32
}

/// scale f16, 8 scales in 6 bits, nibbles as IQ4_NL: weight = d · s · level.
#[inline(always)]
pub(crate) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let scale = d * f32::from(iq4_xs_scale(block, group));
        nibbles(&mut out[32 * group..], scale, &block[8 + 16 * group..], &IQ4_LEVELS);
    }
}

/// scale f16; for 32 weights four entries in a byte each, four times seven signs and a scale in 4 bits: weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub(crate) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
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

/// The two scales, of 16 weights each, in a byte of IQ2_XS and IQ2_S.
#[inline(always)]
fn iq2_scales(d: f32, byte: u8) -> [f32; 2] {
    [byte & 15, byte >> 4].map(|s| d * (0.5 + f32::from(s)) * 0.25)
}

/// scale f16, 32 words of entry (9 bits) and seven signs, 16 scales in 4 bits: weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub(crate) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
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

/// scale f16, 32 entries' low bytes, 32 bytes of signs, the entries' two high bits, 16 scales in 4 bits: weight = d · (s + ½) / 4 · level.
#[inline(always)]
pub(crate) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half_at(block, 0);
    for group in 0..8 {
        let (scales, tops) = (iq2_scales(d, block[74 + group]), block[66 + group]);
        for k in 0..4 {
            let entry = usize::from(block[2 + 4 * group + k]) | usize::from(tops >> (2 * k) & 3) << 8;
            signed(&mut out[32 * group + 8 * k..], scales[k / 2], &IQ2_S_BOOK[entry], block[34 + 4 * group + k]);
        }
    }
}

/// scale f16, 64 entries in a byte each, for 32 weights four times seven signs and a scale in 4 bits: weight = d · (s + ½) / 2 · level.
#[inline(always)]
pub(crate) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
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

/// scale f16, 64 entries' low bytes, their ninth bits, 32 bytes of signs, 8 scales in 4 bits: weight = d · (2 s + 1) · level.
#[inline(always)]
pub(crate) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
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

#[inline(always)]
fn shifted(out: &mut [f32], scale: f32, digits: &[u8; 8], delta: f32) {
    let out = &mut out[..8];
    for j in 0..8 {
        out[j] = scale * (f32::from(digits[j] as i8 - 1) + delta);
    }
}

/// scale f16, 32 entries' low bytes; for 32 weights a word of their high bits, a scale in 3 and the shift's sign:
/// weight = d · (2 s + 1) · (level ± ⅛).
#[inline(always)]
pub(crate) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
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

/// The scale of an IQ1_M block: a half whose nibbles top the four words of its scales.
#[inline(always)]
pub(crate) fn iq1_m_half(block: &[u8; 56]) -> u16 {
    let nibble = |i: usize| u16::from(block[49 + 2 * i] >> 4);
    nibble(0) | nibble(1) << 4 | nibble(2) << 8 | nibble(3) << 12
}

/// 32 entries' low bytes, a nibble each of three high bits and the shift's sign, 16 scales in 3 bits: weight = d · (2 s + 1) · (level ± ⅛).
#[inline(always)]
pub(crate) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let d = super::dequant::f16_to_f32(iq1_m_half(block));
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

/// Five ternary digits a byte, as the fraction byte / 256 in base 3: 160 weights in 32 bytes, 80 in 16, 16 in four with four digits
/// each; scale f16 at the end: weight = d · (digit - 1).
#[inline(always)]
pub(crate) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
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

/// 64 bytes of two-bit codes, scale f16: weight = d · (q - 1).
#[inline(always)]
pub(crate) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(block, 64);
    for group in 0..8 {
        let (bytes, shift) = (group / 4 * 32, group % 4 * 2);
        for l in 0..32 {
            out[32 * group + l] = d * f32::from((block[bytes + l] >> shift & 3) as i8 - 1);
        }
    }
}
