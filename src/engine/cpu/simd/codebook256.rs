//! Four-bit codes through a table of 16 levels in AVX2 registers: one byte shuffle looks up 16 or 32 of them.

use std::arch::x86_64::*;

use super::Dequant;
use super::avx2::{Avx2, V};
use crate::model::{codebook, dequant};

/// The levels of 16 bytes' nibbles, low ones first, times `scale`.
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
        // SAFETY: reads within the block's bytes; `dispatch` picks it only where the processor has AVX2.
        unsafe impl Dequant<Avx2> for $name {
            const BLOCK: usize = $block;
            const BYTES: usize = $bytes;
            type State = ();
            #[inline(always)]
            unsafe fn state(_: *const u8) {}
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
