//! Dequantisation in AVX2 registers, for types whose scalar dequantisers compile to slow code. Codes become signed bytes (four-bit codes
//! through a table, by byte shuffle), then float32, then are multiplied by their scale. The bits equal those of the scalar dequantisers.

use std::arch::x86_64::*;

use super::avx2::{Avx2, V};
use super::{Dequant, Isa};
use model::{codebook, dequant};

/// The levels of the 32 nibbles in 16 bytes, low nibbles first, times `scale`.
#[inline(always)]
unsafe fn nibbles(p: *const u8, levels: &[i8; 16], scale: f32) -> [V; 2] {
    let (bytes, table) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(levels.as_ptr().cast()));
    let mask = _mm_set1_epi8(15);
    let low = _mm_shuffle_epi8(table, _mm_and_si128(bytes, mask));
    let high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask));
    [scaled(low, scale), scaled(high, scale)]
}

#[inline(always)]
unsafe fn scaled(levels: __m128i, scale: f32) -> V {
    let scale = _mm256_set1_ps(scale);
    let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(levels));
    let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(levels)));
    (_mm256_mul_ps(scale, first), _mm256_mul_ps(scale, second))
}

#[inline(always)]
unsafe fn half_at(p: *const u8) -> f32 {
    dequant::f16_to_f32(p.cast::<u16>().read_unaligned())
}

macro_rules! through_table {
    ($name:ident, $block:literal, $bytes:literal, $levels:path, |$p:ident, $j:ident| $codes:expr, $scale:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has AVX2.
        unsafe impl Dequant<Avx2> for $name {
            const BLOCK: usize = $block;
            const BYTES: usize = $bytes;
            type State = ();
            #[inline(always)]
            unsafe fn state(_: *const u8, _: *mut ()) {}
            #[inline(always)]
            unsafe fn w32($p: *const u8, _: &(), $j: usize) -> [V; 2] {
                nibbles($p.add($codes), &$levels, $scale)
            }
        }
    };
}

through_table!(Iq4Nl, 32, 18, codebook::IQ4_LEVELS, |p, _j| 2, half_at(p));
through_table!(Mxfp4, 32, 17, codebook::MXFP4_LEVELS, |p, _j| 1, codebook::e8m0_half(*p));
through_table!(Iq4Xs, 256, 136, codebook::IQ4_LEVELS, |p, j| 8 + 16 * j, {
    half_at(p) * f32::from(codebook::iq4_xs_scale(&*p.cast::<[u8; 136]>(), j))
});

pub struct Nvfp4;

// SAFETY: as for the types with a table.
unsafe impl Dequant<Avx2> for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;
    type State = ();
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn w32(p: *const u8, _: &(), j: usize) -> [V; 2] {
        [nvfp4(p, 2 * j), nvfp4(p, 2 * j + 1)]
    }
}

/// The 16 weights `i` of an NVFP4 block: eight bytes' low nibbles, then their high ones.
#[inline(always)]
unsafe fn nvfp4(p: *const u8, i: usize) -> V {
    let table = _mm_loadu_si128(codebook::MXFP4_LEVELS.as_ptr().cast());
    let bytes = _mm_loadl_epi64(p.add(4 + 8 * i).cast());
    let codes = _mm_and_si128(_mm_unpacklo_epi64(bytes, _mm_srli_epi16::<4>(bytes)), _mm_set1_epi8(15));
    scaled(_mm_shuffle_epi8(table, codes), codebook::UE4M3_HALVES[usize::from(*p.add(i))])
}

/// 32 signed codes as weights, with one scale for each half.
#[inline(always)]
unsafe fn weights(codes: __m256i, first: f32, second: f32) -> [V; 2] {
    [scaled(_mm256_castsi256_si128(codes), first), scaled(_mm256_extracti128_si256::<1>(codes), second)]
}

/// 32 two-bit codes of group `j`.
#[inline(always)]
unsafe fn two_bits(p: *const u8, j: usize) -> __m256i {
    let q = _mm256_srl_epi16(_mm256_loadu_si256(p.add(32 * (j / 4)).cast()), _mm_cvtsi32_si128(2 * (j % 4) as i32));
    _mm256_and_si256(q, _mm256_set1_epi8(3))
}

pub struct Q2K;

// SAFETY: as for the types with a table.
unsafe impl Dequant<Avx2> for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    type State = [f32; 2];
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [f32; 2]) {
        *out = [half_at(p.add(80)), half_at(p.add(82))];
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[f32; 2], j: usize) -> [V; 2] {
        let (a, b) = (*p.add(2 * j), *p.add(2 * j + 1));
        let [first, second] = weights(two_bits(p.add(16), j), s[0] * f32::from(a & 15), s[0] * f32::from(b & 15));
        [Avx2::sub(first, Avx2::splat(s[1] * f32::from(a >> 4))), Avx2::sub(second, Avx2::splat(s[1] * f32::from(b >> 4)))]
    }
}

pub struct Q3K;

// SAFETY: as for the types with a table.
unsafe impl Dequant<Avx2> for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    /// One scale for each 16 weights.
    type State = [f32; 16];
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [f32; 16]) {
        let (scales, d) = (dequant::q3_k_scales(&*p.add(96).cast::<[u8; 12]>()), half_at(p.add(108)));
        for i in 0..16 {
            (*out)[i] = d * f32::from(scales[i]);
        }
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[f32; 16], j: usize) -> [V; 2] {
        let third = _mm256_and_si256(_mm256_loadu_si256(p.cast()), _mm256_set1_epi8((1u8 << j) as i8));
        // a clear third bit subtracts four
        let four = _mm256_and_si256(_mm256_cmpeq_epi8(third, _mm256_setzero_si256()), _mm256_set1_epi8(4));
        weights(_mm256_sub_epi8(two_bits(p.add(32), j), four), s[2 * j], s[2 * j + 1])
    }
}

pub struct Q6K;

// SAFETY: as for the types with a table.
unsafe impl Dequant<Avx2> for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    type State = f32;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut f32) {
        *out = half_at(p.add(208));
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, d: &f32, j: usize) -> [V; 2] {
        let (half, quarter) = (j / 4, j % 4);
        let low = _mm256_loadu_si256(p.add(64 * half + 32 * (quarter % 2)).cast());
        let low = if quarter < 2 { low } else { _mm256_srli_epi16::<4>(low) };
        let high = _mm256_slli_epi16::<4>(two_bits(p.add(128), j));
        let code = _mm256_sub_epi8(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), high), _mm256_set1_epi8(32));
        let (first, second) = (*p.add(192 + 2 * j) as i8, *p.add(193 + 2 * j) as i8);
        weights(code, d * f32::from(first), d * f32::from(second))
    }
}
