//! The ternary types.

use std::arch::x86_64::*;

use super::super::halves::f16_at;
use super::superblocks::{shifted, twice};
use super::{Codes, V};

pub struct Tq2_0;

// SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has the instruction set.
unsafe impl Codes for Tq2_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 66;
    const MINIMA: Option<usize> = Some(16);
    const UNIFORM: bool = true;
    type State = ();
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn codes(p: *const u8, (): &(), j: usize) -> __m512i {
        let shift = 4 * (j % 2) as i64;
        _mm512_and_si512(shifted(twice(p.add(32 * (j / 2))), shift, shift + 2), _mm512_set1_epi8(3))
    }
    #[inline(always)]
    unsafe fn scales(p: *const u8, (): &(), _: usize) -> V {
        _mm512_set1_ps(f16_at(p.add(64)))
    }
    #[inline(always)]
    unsafe fn minima(p: *const u8, (): &()) -> V {
        _mm512_set1_ps(f16_at(p.add(64)))
    }
}

/// A digit of each byte, 64 times as large: the first digit of the fraction byte / 256 in base 3.
#[inline(always)]
unsafe fn digits(bytes: __m512i) -> __m512i {
    // averages round up, so three quarters of a byte less one have the digit as upper two bits (the assertion below)
    let less = _mm512_subs_epu8(bytes, _mm512_set1_epi8(1));
    let quarters = _mm512_avg_epu8(less, _mm512_avg_epu8(less, _mm512_setzero_si512()));
    _mm512_and_si512(quarters, _mm512_set1_epi8(0xc0u8 as i8))
}

const _: () = {
    let mut byte = 0u32;
    while byte < 256 {
        let less = byte.saturating_sub(1);
        assert!((less + less.div_ceil(2)).div_ceil(2) >> 6 == (3 * byte) >> 8);
        byte += 1;
    }
};

/// Three times each byte modulo 256.
#[inline(always)]
unsafe fn thrice(bytes: __m512i) -> __m512i {
    _mm512_add_epi8(bytes, _mm512_add_epi8(bytes, bytes))
}

/// Three times the bytes of `mask`.
#[inline(always)]
unsafe fn thrice_where(mask: u64, bytes: __m512i) -> __m512i {
    _mm512_mask_add_epi8(bytes, mask, bytes, _mm512_add_epi8(bytes, bytes))
}

pub struct Tq1_0;

// SAFETY: as for TQ2_0.
unsafe impl Codes for Tq1_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 54;
    const MINIMA: Option<usize> = Some(16);
    const UNIFORM: bool = true;
    /// The bytes of each step, whose first digits are its weights.
    type State = [__m512i; 4];
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [__m512i; 4]) {
        // 1 and 3 times the first 32 bytes, then 9 and 27 times, then 81 times
        let first = thrice_where(!0 << 32, twice(p));
        let second = thrice(thrice(first));
        let third = thrice(thrice(second));
        // 1, 3, 9 and 27 times the next 16 bytes, then 81 times
        let middle = _mm512_broadcast_i32x4(_mm_loadu_si128(p.add(32).cast()));
        let middle = thrice_where(!0 << 48, thrice_where(!0 << 32, thrice_where(!0 << 16, middle)));
        let fifth = thrice(middle);
        // 1, 3, 9 and 27 times the last four bytes
        let last = _mm512_set1_epi32(p.add(48).cast::<i32>().read_unaligned());
        let last = thrice_where(0xf000 << 48, thrice_where(0xff00 << 48, thrice_where(0xfff0 << 48, last)));
        let third = _mm512_mask_shuffle_i64x2::<0x44>(third, 0xf0, middle, middle);
        let fourth = _mm512_mask_shuffle_i64x2::<0xfe>(last, 0x3f, middle, fifth);
        *out = [first, second, third, fourth];
    }
    #[inline(always)]
    unsafe fn codes(_: *const u8, bytes: &[__m512i; 4], j: usize) -> __m512i {
        digits(bytes[j])
    }
    #[inline(always)]
    unsafe fn scales(p: *const u8, _: &[__m512i; 4], _: usize) -> V {
        _mm512_set1_ps(f16_at(p.add(52)) / 64.0)
    }
    #[inline(always)]
    unsafe fn minima(p: *const u8, _: &[__m512i; 4]) -> V {
        _mm512_set1_ps(f16_at(p.add(52)))
    }
}
