//! The code-book types in AVX-512 registers. An entry of a code book holds the indices of its elements. Broadcast and shifted
//! by lane, the indices select from a table of finished weights (`vpermps` reads the low four bits of each lane). Signs are a mask.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::dequant512::{V, blocks_of_32, bytes16, f16_at, high, in_memory, low};
use super::{Dequant, Isa};
use model::codebook::{self, EVEN_SIGNS};

#[inline(always)]
unsafe fn word_at(p: *const u8) -> u32 {
    p.cast::<u32>().read_unaligned()
}

#[inline(always)]
unsafe fn byte_at(p: *const u8) -> u32 {
    u32::from(*p)
}

#[inline(always)]
unsafe fn half_word_at(p: *const u8) -> u32 {
    u32::from(p.cast::<u16>().read_unaligned())
}

/// Entry `i` of a code book; `i` is below `N`.
#[inline(always)]
unsafe fn entry<const N: usize>(book: &[u16; N], index: u32) -> u32 {
    u32::from(*book.as_ptr().add(index as usize))
}

/// The signs of 16 weights, seven bits per eight weights.
#[inline(always)]
unsafe fn even_signs(first: u32, second: u32) -> u32 {
    let signs = |bits: u32| u32::from(*EVEN_SIGNS.as_ptr().add(bits as usize & 127));
    signs(first) | signs(second) << 8
}

#[inline(always)]
unsafe fn signed(v: V, signs: u32) -> V {
    _mm512_mask_xor_ps(v, signs as u16, v, Avx512::splat(-0.0))
}

/// The 16 levels, one per lane.
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

/// `|p, s, j, i|` gives half `i` of the 32 weights `j`. A closure that is not inlined would lose the instruction set, so this is a macro.
macro_rules! blocks_of_256 {
    ($name:ident, $bytes:literal, $state:ty, |$p:ident| $make:expr, |$q:ident, $s:ident, $j:ident, $i:ident| $body:expr) => {
        pub struct $name;
        impl $name {
            #[inline(always)]
            unsafe fn half($q: *const u8, $s: &$state, $j: usize, $i: usize) -> V {
                $body
            }
        }
        // SAFETY: reads within the block's bytes, and entries whose index has no more bits than the book; `dispatch` picks it
        // only if the processor has AVX-512.
        unsafe impl Dequant<Avx512> for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            type State = $state;
            #[inline(always)]
            unsafe fn state($p: *const u8) -> $state {
                $make
            }
            #[inline(always)]
            unsafe fn w32(p: *const u8, s: &$state, j: usize) -> [V; 2] {
                [Self::half(p, s, j, 0), Self::half(p, s, j, 1)]
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

#[inline(always)]
unsafe fn iq4_xs_scales(p: *const u8) -> [f32; 8] {
    let (block, d, mut out) = (&*p.cast::<[u8; 136]>(), f16_at(p), [0.0; 8]);
    for group in 0..8 {
        out[group] = d * f32::from(codebook::iq4_xs_scale(block, group));
    }
    in_memory(&mut out);
    out
}

blocks_of_256!(Iq4Xs, 136, [f32; 8], |p| iq4_xs_scales(p), |p, s, j, i| {
    let table = Avx512::mul(Avx512::splat(s[j]), table!(|i| codebook::IQ4_LEVELS[i] as f32));
    let b = bytes16(p.add(8 + 16 * j));
    if i == 0 { low(table, b) } else { high(table, b) }
});

/// Two entries of eight two-bit indices each, one index per lane.
#[inline(always)]
unsafe fn two_bits(first: u32, second: u32) -> __m512i {
    let shifts = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    _mm512_srlv_epi32(_mm512_set1_epi32((first | second << 16) as i32), shifts)
}

/// Two pairs of entries of four indices each, one nibble per index.
#[inline(always)]
unsafe fn nibbles(first: u32, second: u32) -> __m512i {
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    let both = _mm512_mask_set1_epi32(_mm512_set1_epi32(first as i32), 0xff00, second as i32);
    _mm512_srlv_epi32(both, shifts)
}

/// The levels of IQ2 in every group of four lanes. No entry uses the fourth.
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

blocks_of_256!(Iq2Xxs, 66, f32, |p| f16_at(p), |p, d, j, i| {
    let (e, word) = (p.add(2 + 8 * j + 2 * i), word_at(p.add(6 + 8 * j)));
    let table = iq2_levels(d * (0.5 + (word >> 28) as f32) * 0.25);
    let lanes = two_bits(entry(&codebook::IQ2_XXS, byte_at(e)), entry(&codebook::IQ2_XXS, byte_at(e.add(1))));
    signed(_mm512_permutexvar_ps(lanes, table), even_signs(word >> (14 * i), word >> (14 * i + 7)))
});

blocks_of_256!(Iq2Xs, 74, [f32; 16], |p| iq2_scales(f16_at(p), p.add(66)), |p, s, j, i| {
    let word = word_at(p.add(2 + 8 * j + 4 * i));
    let lanes = two_bits(entry(&codebook::IQ2_XS, word & 511), entry(&codebook::IQ2_XS, word >> 16 & 511));
    signed(_mm512_permutexvar_ps(lanes, iq2_levels(s[2 * j + i])), even_signs(word >> 9, word >> 25))
});

blocks_of_256!(Iq2S, 82, [f32; 16], |p| iq2_scales(f16_at(p), p.add(74)), |p, s, j, i| {
    let (e, tops) = (p.add(2 + 4 * j + 2 * i), byte_at(p.add(66 + j)) >> (4 * i));
    let [a, b] = [byte_at(e) | (tops & 3) << 8, byte_at(e.add(1)) | (tops >> 2 & 3) << 8];
    let lanes = two_bits(entry(&codebook::IQ2_S, a), entry(&codebook::IQ2_S, b));
    signed(_mm512_permutexvar_ps(lanes, iq2_levels(s[2 * j + i])), half_word_at(p.add(34 + 4 * j + 2 * i)))
});

blocks_of_256!(Iq3Xxs, 98, f32, |p| f16_at(p), |p, d, j, i| {
    let (e, word) = (p.add(2 + 8 * j + 4 * i), word_at(p.add(66 + 4 * j)));
    let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
    let table = Avx512::mul(Avx512::splat(scale), table!(|i| codebook::IQ3_XXS_LEVELS[i % 8] as f32));
    let first = entry(&codebook::IQ3_XXS, byte_at(e)) | entry(&codebook::IQ3_XXS, byte_at(e.add(1))) << 16;
    let second = entry(&codebook::IQ3_XXS, byte_at(e.add(2))) | entry(&codebook::IQ3_XXS, byte_at(e.add(3))) << 16;
    signed(_mm512_permutexvar_ps(nibbles(first, second), table), even_signs(word >> (14 * i), word >> (14 * i + 7)))
});

/// An entry of IQ3_S, whose index is a low byte and bit `k` of `tops`.
#[inline(always)]
unsafe fn iq3_s_entry(e: *const u8, tops: u32, k: usize) -> u32 {
    entry(&codebook::IQ3_S, byte_at(e.add(k)) | (tops >> k & 1) << 8)
}

blocks_of_256!(Iq3S, 110, f32, |p| f16_at(p), |p, d, j, i| {
    let (e, tops) = (p.add(2 + 8 * j + 4 * i), byte_at(p.add(66 + j)) >> (4 * i));
    let scale = d * f32::from(1 + 2 * (*p.add(106 + j / 2) >> (j % 2 * 4) & 15));
    let table = Avx512::mul(Avx512::splat(scale), table!(|i| codebook::IQ3_S_LEVELS[i % 8] as f32));
    let first = iq3_s_entry(e, tops, 0) | iq3_s_entry(e, tops, 1) << 16;
    let second = iq3_s_entry(e, tops, 2) | iq3_s_entry(e, tops, 3) << 16;
    signed(_mm512_permutexvar_ps(nibbles(first, second), table), half_word_at(p.add(74 + 4 * j + 2 * i)))
});

/// The levels of IQ1, shifted up or down by an eighth.
#[inline(always)]
unsafe fn iq1_levels(scale: f32, down: u32) -> V {
    const LEVELS: [[f32; 16]; 2] = {
        let (mut levels, mut i) = ([[0f32; 16]; 2], 0);
        while i < 16 {
            levels[0][i] = (i % 4) as f32 - 1.0 + codebook::IQ1_DELTA;
            levels[1][i] = (i % 4) as f32 - 1.0 - codebook::IQ1_DELTA;
            i += 1;
        }
        levels
    };
    Avx512::mul(Avx512::splat(scale), Avx512::load(LEVELS[down as usize].as_ptr()))
}

blocks_of_256!(Iq1S, 50, f32, |p| f16_at(p), |p, d, j, i| {
    let (e, word) = (p.add(2 + 4 * j + 2 * i), half_word_at(p.add(34 + 2 * j)));
    let table = iq1_levels(d * (2 * (word >> 12 & 7) + 1) as f32, word >> 15);
    let tops = word >> (6 * i);
    let lanes =
        two_bits(entry(&codebook::IQ1, byte_at(e) | (tops & 7) << 8), entry(&codebook::IQ1, byte_at(e.add(1)) | (tops >> 3 & 7) << 8));
    _mm512_permutexvar_ps(lanes, table)
});

blocks_of_256!(Iq1M, 56, f32, |p| model::dequant::f16_to_f32(codebook::iq1_m_half(&*p.cast::<[u8; 56]>())), |p, d, j, i| {
    let (e, tops) = (p.add(4 * j + 2 * i), byte_at(p.add(32 + 2 * j + i)));
    let scale = half_word_at(p.add(48 + j / 2 * 2)) >> (j % 2 * 6 + 3 * i) & 7;
    let scale = d * (2 * scale + 1) as f32;
    let lanes =
        two_bits(entry(&codebook::IQ1, byte_at(e) | (tops & 7) << 8), entry(&codebook::IQ1, byte_at(e.add(1)) | (tops >> 4 & 7) << 8));
    let downs = ((tops >> 3 & 1) * 0xff) | ((tops >> 7 & 1) * 0xff00);
    _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(lanes, iq1_levels(scale, 0)), downs as u16, lanes, iq1_levels(scale, 1))
});
