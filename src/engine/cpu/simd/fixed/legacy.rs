//! Blocks of 32 weights, two per step, and NVFP4's of 64.

use std::arch::x86_64::*;

use super::super::halves::f16_at;
use super::{Codes, V};
use model::codebook;

/// One scale for each half of the lanes.
#[inline(always)]
unsafe fn two(first: f32, second: f32) -> V {
    _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(first), _mm512_set1_ps(second))
}

/// Nibbles of 16 bytes at `first` and of 16 at `second`: the low ones before the high ones.
#[inline(always)]
pub(super) unsafe fn nibbles(first: *const u8, second: *const u8) -> __m512i {
    let first = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
    let bytes = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128(second.cast()));
    let shifted = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
    _mm512_and_si512(shifted, _mm512_set1_epi8(15))
}

/// Nibbles with a fifth bit each.
#[inline(always)]
unsafe fn five_bits(nibbles: __m512i, first: *const u8, second: *const u8) -> __m512i {
    let bits = |p: *const u8| u64::from(p.cast::<u32>().read_unaligned());
    _mm512_mask_add_epi8(nibbles, bits(first) | bits(second) << 32, nibbles, _mm512_set1_epi8(16))
}

/// Levels from -128 on, by code, as codes with an offset of 128.
const fn unsigned(levels: &[i8; 16]) -> [u8; 16] {
    let (mut out, mut i) = ([0; 16], 0);
    while i < 16 {
        out[i] = levels[i] as u8 ^ 128;
        i += 1;
    }
    out
}

/// The levels of four-bit codes.
#[inline(always)]
pub(super) unsafe fn look_up(levels: &[u8; 16], codes: __m512i) -> __m512i {
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast())), codes)
}

/// `|p, q|` gives the codes of the blocks at `p` and `q`, and `|s|` gives the scale of a block.
macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, $offset:literal, |$p:ident, $q:ident| $codes:expr, |$s:ident| $scale:expr $(, minima: $m:literal)?) => {
        pub struct $name;
        // SAFETY: reads within the blocks' bytes; `dispatch` picks it only if the processor has the instruction set.
        unsafe impl Codes for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            const OFFSET: i32 = $offset;
            type State = ();
            #[inline(always)]
            unsafe fn state(_: *const u8, _: *mut ()) {}
            #[inline(always)]
            unsafe fn codes(p: *const u8, _: &(), j: usize) -> __m512i {
                let $p = p.add(2 * j * $bytes);
                let $q = $p.add($bytes);
                $codes
            }
            #[inline(always)]
            unsafe fn scales(p: *const u8, _: &(), j: usize) -> V {
                let $s = p.add(2 * j * $bytes);
                let first = $scale;
                let $s = $s.add($bytes);
                two(first, $scale)
            }
            $(
                const MINIMA: Option<usize> = Some(32);
                #[inline(always)]
                unsafe fn minima(p: *const u8, _: &()) -> V {
                    minima::<$bytes>(p.add($m))
                }
            )?
        }
    };
}

/// Float16 minima, `APART` bytes from each other, which are added to weights.
#[inline(always)]
unsafe fn minima<const APART: usize>(p: *const u8) -> V {
    let half = |i: usize| p.add(i * APART).cast::<i16>().read_unaligned();
    let halves = _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7));
    // a float16 without its sign bit flipped would be subtracted
    let halves = _mm_xor_si128(halves, _mm_set1_epi16(i16::MIN));
    _mm512_zextps256_ps512(_mm256_cvtph_ps(halves))
}

blocks_of_32!(Q4_0, 18, 8, |p, q| nibbles(p.add(2), q.add(2)), |p| f16_at(p));
blocks_of_32!(Q4_1, 20, 0, |p, q| nibbles(p.add(4), q.add(4)), |p| f16_at(p), minima: 2);
blocks_of_32!(Q5_0, 22, 16, |p, q| five_bits(nibbles(p.add(6), q.add(6)), p.add(2), q.add(2)), |p| f16_at(p));
blocks_of_32!(Q5_1, 24, 0, |p, q| five_bits(nibbles(p.add(8), q.add(8)), p.add(4), q.add(4)), |p| f16_at(p), minima: 2);

blocks_of_32!(
    Q8_0,
    34,
    128,
    |p, q| {
        let first = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(2).cast()));
        let both = _mm512_inserti64x4::<1>(first, _mm256_loadu_si256(q.add(2).cast()));
        _mm512_xor_si512(both, _mm512_set1_epi8(i8::MIN))
    },
    |p| f16_at(p)
);

pub(super) static IQ4: [u8; 16] = unsigned(&codebook::IQ4_LEVELS);
static FP4: [u8; 16] = unsigned(&codebook::MXFP4_LEVELS);

/// The halves of all e8m0 scales.
static E8M0_HALVES: [f32; 256] = {
    let (mut table, mut i) = ([0f32; 256], 0);
    while i < 256 {
        table[i] = codebook::e8m0_half(i as u8);
        i += 1;
    }
    table
};

blocks_of_32!(Iq4Nl, 18, 128, |p, q| look_up(&IQ4, nibbles(p.add(2), q.add(2))), |p| f16_at(p));
blocks_of_32!(Mxfp4, 17, 128, |p, q| look_up(&FP4, nibbles(p.add(1), q.add(1))), |p| E8M0_HALVES[usize::from(*p)]);

pub struct Nvfp4;

// SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has the instruction set.
unsafe impl Codes for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;
    const OFFSET: i32 = 128;
    type State = ();
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn codes(p: *const u8, _: &(), j: usize) -> __m512i {
        // each eight bytes twice: their low nibbles, then their high ones
        let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(36 * j + 4).cast()));
        let bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), bytes);
        let shifted = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
        look_up(&FP4, _mm512_and_si512(shifted, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    unsafe fn scales(p: *const u8, _: &(), j: usize) -> V {
        let p = p.add(36 * j);
        let scale = |i: usize| codebook::UE4M3_HALVES[usize::from(*p.add(i))];
        _mm512_mask_blend_ps(0xf0f0, two(scale(0), scale(2)), two(scale(1), scale(3)))
    }
}
