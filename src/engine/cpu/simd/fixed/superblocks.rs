//! Decodes the K types: blocks of 256 weights with one scale per 16 or 32 weights.

use std::arch::x86_64::*;

use super::super::halves::f16_at;
use super::codes::{Codes, Scales, V};

/// Loads the same 32 bytes into both halves.
///
/// # Safety
/// `p` is valid for 32 bytes, and the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
}

/// One number in the first 32 bytes, and another in the other 32 bytes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn halves(first: u8, second: u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (a, b) = (i64::from_ne_bytes([first; 8]), i64::from_ne_bytes([second; 8]));
        _mm512_setr_epi64(a, a, a, a, b, b, b, b)
    }
}

/// Shifts each half of `bytes` by its own number of bits within 64-bit lanes. Bits from neighbouring bytes are not cleared.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn shifted(bytes: __m512i, first: i64, second: i64) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_srlv_epi64(bytes, _mm512_setr_epi64(first, first, first, first, second, second, second, second)) }
}

/// A number for each 32-bit lane of transposed codes: lane `4 · l + k` belongs to the 16 weights that start at 64 · k + 16 · l.
macro_rules! lanes {
    (|$l:ident, $k:ident| $number:expr) => {{
        const LANES: [i32; 16] = {
            let (mut lanes, mut n) = ([0; 16], 0);
            while n < 16 {
                let ($l, $k) = (n as i32 / 4, n as i32 % 4);
                lanes[n] = $number;
                n += 1;
            }
            lanes
        };
        _mm512_loadu_si512(LANES.as_ptr().cast())
    }};
}

pub(super) use lanes;

/// The transposed codes in 64 bytes of two-bit codes, which are not shifted. Each 32 bytes hold 128 weights, the first 32 in the lowest
/// bits.
///
/// # Safety
/// `p` is valid for 64 bytes, and the processor has the instruction set.
#[inline(always)]
pub(super) unsafe fn two_bits(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bytes = _mm512_loadu_si512(p.cast());
        let mask = lanes!(|l, k| 0x0303_0303 << (4 * (k % 2) + 2 * (l / 2)));
        let first = lanes!(|l, k| 8 * (k / 2) + 4 * (l % 2));
        let mut out = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let word = _mm512_add_epi32(first, _mm512_set1_epi32(i as i32));
            out[i] = _mm512_and_si512(_mm512_permutexvar_epi32(word, bytes), mask);
        }
        out
    }
}

/// The transposed codes in 128 bytes of four-bit codes, which are not shifted. Each 32 bytes hold 64 weights, the first 32 in the lowest
/// bits.
///
/// # Safety
/// `p` is valid for 128 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn four_bits(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (low, high) = (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(64).cast()));
        let mask = lanes!(|l, _k| if l < 2 { 0x0f0f_0f0f } else { 0x0f0f_0f0f << 4 });
        let first = lanes!(|l, k| 8 * k + 4 * (l % 2));
        let mut out = [_mm512_setzero_si512(); 4];
        for i in 0..4 {
            let word = _mm512_add_epi32(first, _mm512_set1_epi32(i as i32));
            out[i] = _mm512_and_si512(_mm512_permutex2var_epi32(low, word, high), mask);
        }
        out
    }
}

/// Defines a type. `|p, out|` writes the state of a block. `steps` gives the codes of step `j`, or `whole` gives all codes, transposed.
macro_rules! superblocks {
    (
        $name:ident, $bytes:literal, $group:literal,
        |$p:ident, $out:ident| $make:expr $(, steps: |$q:ident, $j:ident| $codes:expr)? $(, whole: |$w:ident| $whole:expr)?
    ) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes; `dispatch` chooses it only if the processor has the instruction set.
        unsafe impl Codes for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            const GROUP: usize = $group;
            const MINIMA: bool = true;
            type State = Scales;
            #[inline(always)]
            unsafe fn state($p: *const u8, _: usize, $out: *mut Scales) {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    $make
                }
            }
            $(
                #[inline(always)]
                unsafe fn codes($q: *const u8, _: &Scales, $j: usize) -> __m512i {
                    // SAFETY: the caller keeps the conditions of the trait.
                    unsafe {
                        $codes
                    }
                }
            )?
            $(
                #[inline(always)]
                unsafe fn whole($w: *const u8, _: &Scales) -> [__m512i; 4] {
                    // SAFETY: the caller keeps the conditions of the trait.
                    unsafe {
                        $whole
                    }
                }
            )?
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

pub(super) use superblocks;

/// Converts eight bytes to floats and multiplies them by `d`.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn eight(d: __m256, x: u64) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_zextps256_ps512(_mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x as i64))))) }
}

/// The scales and minima of Q4_K and Q5_K. `odd` is a factor of every second scale.
///
/// # Safety
/// `p` is valid for 16 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn k_scales(p: *const u8, odd: f32, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // twelve bytes: six bits each of scales 0-3 and minima 0-3, then the low four bits of 4-7, whose high two bits top the first eight
        let s = p.add(4);
        let a = s.cast::<u32>().read_unaligned();
        let b = s.add(4).cast::<u32>().read_unaligned();
        let c = s.add(8).cast::<u32>().read_unaligned();
        let scales = u64::from(a & 0x3f3f_3f3f) | u64::from((c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030)) << 32;
        let mins = u64::from(b & 0x3f3f_3f3f) | u64::from(((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030)) << 32;
        let d = _mm256_mul_ps(_mm256_set1_ps(f16_at(p)), _mm256_setr_ps(1.0, odd, 1.0, odd, 1.0, odd, 1.0, odd));
        (*out).scales = eight(d, scales);
        (*out).minima = eight(_mm256_set1_ps(f16_at(p.add(2))), mins);
    }
}

// The high nibbles are not shifted, so their codes are 16 times too large and their scales are divided by 16.
superblocks!(Q4K, 144, 32, |p, out| k_scales(p, 1.0 / 16.0, out), whole: |p| four_bits(p.add(16)));

superblocks!(Q5K, 176, 32, |p, out| k_scales(p, 1.0, out), steps: |p, j| {
    let nibbles = _mm512_and_si512(shifted(twice(p.add(48 + 32 * j)), 0, 4), _mm512_set1_epi8(15));
    let fifth = _mm512_test_epi8_mask(twice(p.add(16)), halves(1 << (2 * j), 2 << (2 * j)));
    _mm512_mask_add_epi8(nibbles, fifth, nibbles, _mm512_set1_epi8(16))
});

/// # Safety
/// `p` is valid for 16 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn bytes16(p: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
}

/// # Safety
/// `p` is valid for a block of 84 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn q2_k_scales(p: *const u8, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // a code that is not shifted is 1, 4, 16 or 64 times too large
        let down = _mm512_setr_ps(
            1., 1., 0.25, 0.25, 0.0625, 0.0625, 0.015_625, 0.015_625, 1., 1., 0.25, 0.25, 0.0625, 0.0625, 0.015_625, 0.015_625,
        );
        let bytes = bytes16(p);
        let scales = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
        (*out).scales = _mm512_mul_ps(_mm512_mul_ps(_mm512_set1_ps(f16_at(p.add(80))), down), scales);
        let minima = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes));
        (*out).minima = _mm512_mul_ps(_mm512_set1_ps(f16_at(p.add(82))), minima);
    }
}

superblocks!(Q2K, 84, 16, |p, out| q2_k_scales(p, out), whole: |p| two_bits(p.add(16)));

/// # Safety
/// `p` is valid for a block of 110 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn q3_k_scales(p: *const u8, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // sixteen low nibbles and sixteen pairs of high bits
        let (first, last) = (p.add(96).cast::<u64>().read_unaligned(), p.add(104).cast::<u32>().read_unaligned());
        let low = _mm_and_si128(_mm_set_epi64x((first >> 4) as i64, first as i64), _mm_set1_epi8(15));
        let high = _mm_srlv_epi32(_mm_set1_epi32(last as i32), _mm_setr_epi32(0, 2, 4, 6));
        let high = _mm_slli_epi16::<4>(_mm_and_si128(high, _mm_set1_epi8(3)));
        let scales = _mm512_sub_epi32(_mm512_cvtepu8_epi32(_mm_or_si128(low, high)), _mm512_set1_epi32(32));
        (*out).scales = _mm512_mul_ps(_mm512_set1_ps(f16_at(p.add(108))), _mm512_cvtepi32_ps(scales));
        (*out).minima = _mm512_mul_ps((*out).scales, _mm512_set1_ps(4.0));
    }
}

superblocks!(Q3K, 110, 16, |p, out| q3_k_scales(p, out), steps: |p, j| {
    let shift = 4 * (j % 2) as i64;
    let two = _mm512_and_si512(shifted(twice(p.add(32 + 32 * (j / 2))), shift, shift + 2), _mm512_set1_epi8(3));
    let third = _mm512_test_epi8_mask(twice(p), halves(1 << (2 * j), 2 << (2 * j)));
    _mm512_mask_add_epi8(two, third, two, _mm512_set1_epi8(4))
});

/// # Safety
/// `p` is valid for a block of 210 bytes and `out` for writes, and the processor has the instruction set.
#[inline(always)]
unsafe fn q6_k_scales(p: *const u8, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(192).cast())));
        (*out).scales = _mm512_mul_ps(_mm512_set1_ps(f16_at(p.add(208))), scales);
        (*out).minima = _mm512_mul_ps((*out).scales, _mm512_set1_ps(32.0));
    }
}

superblocks!(Q6K, 210, 16, |p, out| q6_k_scales(p, out), steps: |p, j| {
    let (low, high) = (_mm512_loadu_si512(p.add(64 * (j / 2)).cast()), twice(p.add(128 + 32 * (j / 2))));
    // the two high bits move to bits 4 and 5
    let (low, high) = if j.is_multiple_of(2) {
        (low, _mm512_sllv_epi64(high, _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2)))
    } else {
        (_mm512_srli_epi64::<4>(low), shifted(high, 0, 2))
    };
    // bits of `low` where the mask is set, bits of `high` elsewhere
    let code = _mm512_ternarylogic_epi64::<0xCA>(_mm512_set1_epi8(15), low, high);
    _mm512_and_si512(code, _mm512_set1_epi8(63))
});
