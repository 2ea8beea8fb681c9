//! Decodes blocks of 32 weights (two per step), whose codes are integers or index levels, and NVFP4's of 64.

use std::arch::x86_64::*;

use super::codes::{Codes, Scales, V};
use model::codebook;

/// The first four bytes of each of `blocks` blocks of `BYTES` bytes, followed by zeros.
///
/// # Safety
/// `p` is valid for `blocks` blocks of `BYTES` bytes, at most eight, and the processor has the instruction set.
#[inline(always)]
unsafe fn heads<const BYTES: usize>(p: *const u8, blocks: usize) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let head = |i: usize| p.add(i * BYTES).cast::<i32>().read_unaligned();
        if blocks == 8 {
            return _mm256_setr_epi32(head(0), head(1), head(2), head(3), head(4), head(5), head(6), head(7));
        }
        let mut all = [0; 8];
        for i in 0..blocks {
            all[i] = head(i);
        }
        _mm256_loadu_si256(all.as_ptr().cast())
    }
}

/// Converts the float16 numbers in the lower halves of words.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn floats(words: __m256i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm256_cvtepi32_epi16(words))) }
}

/// Half of each e8m0 scale in the lowest byte of a word.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn e8m0_halves(words: __m256i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let exponents = _mm256_and_si256(words, _mm256_set1_epi32(255));
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
        let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
        let is_normal = _mm256_cmpgt_epi32_mask(exponents, _mm256_set1_epi32(1));
        _mm512_zextps256_ps512(_mm256_castsi256_ps(_mm256_mask_mov_epi32(tiny, is_normal, normal)))
    }
}

/// The nibbles of 16 bytes at `first` and of 16 at `second`, in each case low nibbles before high ones.
///
/// # Safety
/// `first` and `second` are valid for 16 bytes, and the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn nibbles(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let first = _mm512_broadcast_i32x4(_mm_loadu_si128(first.cast()));
        let bytes = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128(second.cast()));
        let shifted = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
        _mm512_and_si512(shifted, _mm512_set1_epi8(15))
    }
}

/// Converts signed levels, ordered by code, to codes with an offset of 128.
const fn unsigned(levels: &[i8; 16]) -> [u8; 16] {
    let (mut out, mut i) = ([0; 16], 0);
    while i < 16 {
        out[i] = levels[i] as u8 ^ 128;
        i += 1;
    }
    out
}

/// Looks up the levels of four-bit codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn look_up(levels: &[u8; 16], codes: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast())), codes) }
}

/// Defines a type. `|p, q|` gives the codes of the blocks at `p` and `q`, and `|s|` the scales and minima from the first four bytes of each
/// of eight blocks.
macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, $minima:literal, |$p:ident, $q:ident| $codes:expr, |$s:ident| $scales:expr) => {
        pub struct $name;
        // SAFETY: reads within the blocks' bytes; `dispatch` chooses it only if the processor has the instruction set.
        unsafe impl Codes for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            const GROUP: usize = 32;
            const MINIMA: bool = $minima;
            type State = Scales;
            #[inline(always)]
            unsafe fn state(p: *const u8, blocks: usize, out: *mut Scales) {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    let $s = heads::<$bytes>(p, blocks);
                    let (scales, minima) = $scales;
                    *out = Scales { scales, minima };
                }
            }
            #[inline(always)]
            unsafe fn codes(p: *const u8, _: &Scales, j: usize) -> __m512i {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    let $p = p.add(2 * j * $bytes);
                    let $q = $p.add($bytes);
                    $codes
                }
            }
            #[inline(always)]
            unsafe fn scales(s: &Scales) -> V {
                s.scales
            }
            #[inline(always)]
            unsafe fn minima(s: &Scales) -> V {
                s.minima
            }
        }
    };
}

/// The scales of codes with an offset, which have no minima.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn offset(scales: V) -> (V, V) {
    // SAFETY: the caller keeps the condition above.
    unsafe { (scales, _mm512_setzero_ps()) }
}

/// The second float16 number of each word, negated: what is added to all weights of a block, as a minimum.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn minima(words: __m256i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_sub_ps(_mm512_setzero_ps(), floats(_mm256_srli_epi32::<16>(words))) }
}

/// Adds 16 to the codes of two blocks whose fifth bits, in the four bytes at `first` and at `second`, are set.
///
/// # Safety
/// `first` and `second` are valid for four bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn add_fifth(codes: __m512i, first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bits = |p: *const u8| u64::from(p.cast::<u32>().read_unaligned());
        _mm512_mask_add_epi8(codes, bits(first) | bits(second) << 32, codes, _mm512_set1_epi8(16))
    }
}

/// Joins 32 bytes at `first` and 32 at `second`.
///
/// # Safety
/// `first` and `second` are valid for 32 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn joined(first: *const u8, second: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_inserti64x4::<1>(_mm512_castsi256_si512(_mm256_loadu_si256(first.cast())), _mm256_loadu_si256(second.cast())) }
}

pub(super) static IQ4: [u8; 16] = unsigned(&codebook::IQ4_LEVELS);
static FP4: [u8; 16] = unsigned(&codebook::MXFP4_LEVELS);

blocks_of_32!(Q4_0, 18, false, |p, q| _mm512_add_epi8(nibbles(p.add(2), q.add(2)), _mm512_set1_epi8(120)), |heads| offset(floats(heads)));
blocks_of_32!(Q4_1, 20, true, |p, q| nibbles(p.add(4), q.add(4)), |heads| (floats(heads), minima(heads)));
blocks_of_32!(
    Q5_0,
    22,
    false,
    |p, q| add_fifth(_mm512_or_si512(nibbles(p.add(6), q.add(6)), _mm512_set1_epi8(112)), p.add(2), q.add(2)),
    |heads| offset(floats(heads))
);
blocks_of_32!(Q5_1, 24, true, |p, q| add_fifth(nibbles(p.add(8), q.add(8)), p.add(4), q.add(4)), |heads| (floats(heads), minima(heads)));
blocks_of_32!(Q8_0, 34, false, |p, q| _mm512_xor_si512(joined(p.add(2), q.add(2)), _mm512_set1_epi8(-128)), |heads| offset(floats(heads)));
blocks_of_32!(Iq4Nl, 18, false, |p, q| look_up(&IQ4, nibbles(p.add(2), q.add(2))), |heads| offset(floats(heads)));
blocks_of_32!(Mxfp4, 17, false, |p, q| look_up(&FP4, nibbles(p.add(1), q.add(1))), |heads| offset(e8m0_halves(heads)));

pub struct Nvfp4;

// SAFETY: reads within the block's bytes; `dispatch` chooses it only if the processor has the instruction set.
unsafe impl Codes for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;
    const GROUP: usize = 16;
    type State = V;
    #[inline(always)]
    unsafe fn state(p: *const u8, blocks: usize, out: *mut V) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            // four scales per block
            let mut all = [0f32; 16];
            for i in 0..blocks {
                for k in 0..4 {
                    all[4 * i + k] = codebook::UE4M3_HALVES[usize::from(*p.add(36 * i + k))];
                }
            }
            *out = _mm512_loadu_ps(all.as_ptr());
        }
    }
    #[inline(always)]
    unsafe fn codes(p: *const u8, _: &V, j: usize) -> __m512i {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            // each group of eight bytes twice: its low nibbles, then its high ones
            let bytes = _mm512_castsi256_si512(_mm256_loadu_si256(p.add(36 * j + 4).cast()));
            let bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), bytes);
            let shifted = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4));
            look_up(&FP4, _mm512_and_si512(shifted, _mm512_set1_epi8(15)))
        }
    }
    #[inline(always)]
    unsafe fn scales(s: &V) -> V {
        *s
    }
    #[inline(always)]
    unsafe fn minima(_: &V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_setzero_ps() }
    }
}
