//! The code-book types in AVX-512 registers. An entry of a book is the indexes of its elements: broadcast and shifted by lane, they
//! pick from a table of finished weights (`vpermps` reads the low four bits of each lane), and signs are a mask.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::dequant512::{V, blocks_of_32, bytes16, f16_at, high, in_memory, low};
use super::{Dequant, Isa};
use crate::model::codebook::{self, EVEN_SIGNS};

#[inline(always)]
unsafe fn word_at(p: *const u8) -> u32 {
    p.cast::<u32>().read_unaligned()
}

#[inline(always)]
unsafe fn half_word_at(p: *const u8) -> u32 {
    u32::from(p.cast::<u16>().read_unaligned())
}

/// An entry, by an index below `N`.
#[inline(always)]
unsafe fn entry<const N: usize>(book: &[u16; N], index: u32) -> u32 {
    u32::from(*book.as_ptr().add(index as usize))
}

#[inline(always)]
unsafe fn even_signs(word: u32) -> u32 {
    u32::from(*EVEN_SIGNS.as_ptr().add(word as usize & 127))
}

#[inline(always)]
unsafe fn signed(v: V, signs: u32) -> V {
    _mm512_mask_xor_ps(v, signs as u16, v, Avx512::splat(-0.0))
}

/// The 16 levels by lane.
macro_rules! table {
    (|$i:ident| $level:expr) => {{
        const TABLE: [f32; 16] = {
            let (mut table, mut $i) = ([0f32; 16], 0);
            while $i < 16 {
                table[$i] = $level;
                $i += 1;
            }
            table
        };
        Avx512::load(TABLE.as_ptr())
    }};
}

macro_rules! blocks_of_256 {
    ($name:ident, $bytes:literal, $state:ty, |$p:ident| $make:expr, |$s:ident, $j:ident| $body:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes, and entries whose index has no more bits than the book; `dispatch` picks it only
        // where the processor has AVX-512.
        unsafe impl Dequant<Avx512> for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            type State = $state;
            #[inline(always)]
            unsafe fn state($p: *const u8) -> $state {
                $make
            }
            #[inline(always)]
            unsafe fn w32($p: *const u8, $s: &$state, $j: usize) -> [V; 2] {
                $body
            }
        }
    };
}

blocks_of_32!(Iq4Nl, 18, |p| {
    let table = Avx512::mul(Avx512::splat(f16_at(p)), table!(|i| codebook::IQ4_LEVELS[i] as f32));
    let b = bytes16(p.add(2));
    [low(table, b), high(table, b)]
});

blocks_of_32!(Mxfp4, 17, |p| {
    let table = Avx512::mul(Avx512::splat(codebook::e8m0_half(*p)), table!(|i| codebook::MXFP4_LEVELS[i] as f32));
    let b = bytes16(p.add(1));
    [low(table, b), high(table, b)]
});

blocks_of_256!(
    Iq4Xs,
    136,
    [f32; 8],
    |p| {
        let (block, d) = (&*p.cast::<[u8; 136]>(), f16_at(p));
        let mut out: [f32; 8] = std::array::from_fn(|group| d * f32::from(codebook::iq4_xs_scale(block, group)));
        in_memory(&mut out);
        out
    },
    |s, j| {
        let table = Avx512::mul(Avx512::splat(s[j]), table!(|i| codebook::IQ4_LEVELS[i] as f32));
        let b = bytes16(p.add(8 + 16 * j));
        [low(table, b), high(table, b)]
    }
);

/// Two entries of eight two-bit indexes.
#[inline(always)]
unsafe fn two_bits(table: V, first: u32, second: u32) -> V {
    _mm512_permutexvar_ps(two_bit_lanes(first, second), table)
}

#[inline(always)]
unsafe fn two_bit_lanes(first: u32, second: u32) -> __m512i {
    let shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    _mm512_srlv_epi32(_mm512_set1_epi32((first | second << 16) as i32), shifts)
}

/// Four entries of four indexes in a nibble each.
#[inline(always)]
unsafe fn nibbles(table: V, entries: [u32; 4]) -> V {
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    let [a, b] = [entries[0] | entries[1] << 16, entries[2] | entries[3] << 16];
    let both = _mm512_mask_set1_epi32(_mm512_set1_epi32(a as i32), 0xff00, b as i32);
    _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shifts), table)
}

/// The levels of IQ2 in every four lanes; no entry has the fourth.
#[inline(always)]
unsafe fn iq2_levels(scale: f32) -> V {
    Avx512::mul(Avx512::splat(scale), table!(|i| if i % 4 < 3 { codebook::IQ2_LEVELS[i % 4] as f32 } else { 0.0 }))
}

/// The sixteen scales of IQ2_XS and IQ2_S at `p`: d · (s + ½) / 4.
#[inline(always)]
unsafe fn iq2_scales(d: f32, p: *const u8) -> [f32; 16] {
    let packed = _mm_loadl_epi64(p.cast());
    let nibbles = _mm_and_si128(_mm_unpacklo_epi8(packed, _mm_srli_epi16::<4>(packed)), _mm_set1_epi8(15));
    let scales = Avx512::add(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(nibbles)), Avx512::splat(0.5));
    let mut out = [0.0; 16];
    Avx512::store(out.as_mut_ptr(), Avx512::mul(Avx512::mul(Avx512::splat(d), scales), Avx512::splat(0.25)));
    in_memory(&mut out);
    out
}

blocks_of_256!(Iq2Xxs, 66, f32, |p| f16_at(p), |d, j| {
    let (e, word) = (p.add(2 + 8 * j), word_at(p.add(6 + 8 * j)));
    let table = iq2_levels(d * (0.5 + (word >> 28) as f32) * 0.25);
    let part = |k: usize| entry(&codebook::IQ2_XXS, u32::from(*e.add(k)));
    let signs = |k: usize| even_signs(word >> (7 * k)) | even_signs(word >> (7 * k + 7)) << 8;
    [signed(two_bits(table, part(0), part(1)), signs(0)), signed(two_bits(table, part(2), part(3)), signs(2))]
});

blocks_of_256!(Iq2Xs, 74, [f32; 16], |p| iq2_scales(f16_at(p), p.add(66)), |s, j| {
    let half = |i: usize| {
        let (a, b) = (half_word_at(p.add(2 + 8 * j + 4 * i)), half_word_at(p.add(4 + 8 * j + 4 * i)));
        let v = two_bits(iq2_levels(s[2 * j + i]), entry(&codebook::IQ2_XS, a & 511), entry(&codebook::IQ2_XS, b & 511));
        signed(v, even_signs(a >> 9) | even_signs(b >> 9) << 8)
    };
    [half(0), half(1)]
});

blocks_of_256!(Iq2S, 82, [f32; 16], |p| iq2_scales(f16_at(p), p.add(74)), |s, j| {
    let (e, tops) = (p.add(2 + 4 * j), u32::from(*p.add(66 + j)));
    let half = |i: usize| {
        let part = |k: usize| entry(&codebook::IQ2_S, u32::from(*e.add(k)) | (tops >> (2 * k) & 3) << 8);
        signed(two_bits(iq2_levels(s[2 * j + i]), part(2 * i), part(2 * i + 1)), half_word_at(p.add(34 + 4 * j + 2 * i)))
    };
    [half(0), half(1)]
});

blocks_of_256!(Iq3Xxs, 98, f32, |p| f16_at(p), |d, j| {
    let (e, word) = (p.add(2 + 8 * j), word_at(p.add(66 + 4 * j)));
    let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
    let table = Avx512::mul(Avx512::splat(scale), table!(|i| codebook::IQ3_XXS_LEVELS[i % 8] as f32));
    let half = |i: usize| {
        let entries = [0, 1, 2, 3].map(|k| entry(&codebook::IQ3_XXS, u32::from(*e.add(4 * i + k))));
        signed(nibbles(table, entries), even_signs(word >> (14 * i)) | even_signs(word >> (14 * i + 7)) << 8)
    };
    [half(0), half(1)]
});

blocks_of_256!(Iq3S, 110, f32, |p| f16_at(p), |d, j| {
    let (e, tops) = (p.add(2 + 8 * j), u32::from(*p.add(66 + j)));
    let scale = d * f32::from(1 + 2 * (*p.add(106 + j / 2) >> (j % 2 * 4) & 15));
    let table = Avx512::mul(Avx512::splat(scale), table!(|i| codebook::IQ3_S_LEVELS[i % 8] as f32));
    let half = |i: usize| {
        let entries = [0, 1, 2, 3].map(|k| entry(&codebook::IQ3_S, u32::from(*e.add(4 * i + k)) | (tops >> (4 * i + k) & 1) << 8));
        signed(nibbles(table, entries), half_word_at(p.add(74 + 4 * j + 2 * i)))
    };
    [half(0), half(1)]
});

/// The levels of IQ1 shifted up and down by an eighth.
#[inline(always)]
unsafe fn iq1_levels(scale: f32) -> [V; 2] {
    let scale = Avx512::splat(scale);
    let up = table!(|i| if i % 4 < 3 { (i % 4) as f32 - 1.0 + codebook::IQ1_DELTA } else { 0.0 });
    let down = table!(|i| if i % 4 < 3 { (i % 4) as f32 - 1.0 - codebook::IQ1_DELTA } else { 0.0 });
    [Avx512::mul(scale, up), Avx512::mul(scale, down)]
}

blocks_of_256!(Iq1S, 50, f32, |p| f16_at(p), |d, j| {
    let (e, word) = (p.add(2 + 4 * j), half_word_at(p.add(34 + 2 * j)));
    let table = iq1_levels(d * (2 * (word >> 12 & 7) + 1) as f32)[word as usize >> 15];
    let part = |k: usize| entry(&codebook::IQ1, u32::from(*e.add(k)) | (word >> (3 * k) & 7) << 8);
    [two_bits(table, part(0), part(1)), two_bits(table, part(2), part(3))]
});

blocks_of_256!(Iq1M, 56, f32, |p| crate::model::dequant::f16_to_f32(codebook::iq1_m_half(&*p.cast::<[u8; 56]>())), |d, j| {
    let scales = half_word_at(p.add(48 + j / 2 * 2));
    let half = |i: usize| {
        let (e, tops) = (p.add(4 * j + 2 * i), u32::from(*p.add(32 + 2 * j + i)));
        let [up, down] = iq1_levels(d * (2 * (scales >> (j % 2 * 6 + 3 * i) & 7) + 1) as f32);
        let part = |k: usize| entry(&codebook::IQ1, u32::from(*e.add(k)) | (tops >> (4 * k) & 7) << 8);
        let lanes = two_bit_lanes(part(0), part(1));
        let downs = (tops >> 3 & 1) * 0xff | (tops >> 7 & 1) * 0xff00;
        _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(lanes, up), downs as u16, lanes, down)
    };
    [half(0), half(1)]
});
