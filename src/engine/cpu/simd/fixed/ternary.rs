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

/// Three less the first digit in base 3 of the fraction byte / 256, 64 times as large, by the complements of the bytes.
#[inline(always)]
unsafe fn digits(complements: __m512i) -> __m512i {
    // Averages round up, so those of complements stand for three quarters of a byte, rounded down. Its upper two bits are the digit.
    let half = _mm512_avg_epu8(complements, _mm512_set1_epi8(-1));
    _mm512_and_si512(_mm512_avg_epu8(complements, half), _mm512_set1_epi8(-64))
}

const _: () = {
    let mut byte = 0u32;
    while byte < 256 {
        assert!((byte + byte / 2) / 2 >> 6 == (3 * byte) >> 8);
        byte += 1;
    }
};

/// The complements of the bytes' products with the powers of three that stand in `by`, one for two bytes.
#[inline(always)]
unsafe fn powers(bytes: __m512i, by: __m512i) -> __m512i {
    let upper = _mm512_set1_epi16(0xff00u16 as i16);
    let (even, odd) = (_mm512_mullo_epi16(bytes, by), _mm512_mullo_epi16(_mm512_and_si512(bytes, upper), by));
    // the complement of: `odd` where the mask is set, else `even`
    _mm512_ternarylogic_epi64::<0x35>(upper, odd, even)
}

/// Powers of three by their exponents, each for four bytes.
macro_rules! by {
    ($exponents:expr) => {{
        const WORDS: [i32; 16] = {
            let (exponents, mut words, mut i) = ($exponents, [0; 16], 0);
            while i < 16 {
                words[i] = 0x1_0001 * 3i32.pow(exponents[i]);
                i += 1;
            }
            words
        };
        _mm512_loadu_si512(WORDS.as_ptr().cast())
    }};
}

pub struct Tq1_0;

// SAFETY: as for TQ2_0.
unsafe impl Codes for Tq1_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 54;
    const MINIMA: Option<usize> = Some(16);
    const UNIFORM: bool = true;
    type State = ();
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn codes(p: *const u8, (): &(), j: usize) -> __m512i {
        // five digits of 32 bytes, five of 16 bytes and four of four bytes
        let (first, all) = (twice(p), _mm512_maskz_loadu_epi8((1 << 52) - 1, p.cast()));
        digits(match j {
            0 => powers(first, by!([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1])),
            1 => powers(first, by!([2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3])),
            2 => powers(_mm512_shuffle_i64x2::<0xa4>(all, all), by!([4, 4, 4, 4, 4, 4, 4, 4, 0, 0, 0, 0, 1, 1, 1, 1])),
            _ => {
                let order = _mm512_setr_epi32(8, 9, 10, 11, 8, 9, 10, 11, 8, 9, 10, 11, 12, 12, 12, 12);
                powers(_mm512_permutexvar_epi32(order, all), by!([2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 0, 1, 2, 3]))
            }
        })
    }
    #[inline(always)]
    unsafe fn scales(p: *const u8, (): &(), _: usize) -> V {
        _mm512_set1_ps(f16_at(p.add(52)) * (-1.0 / 64.0))
    }
    #[inline(always)]
    unsafe fn minima(p: *const u8, (): &()) -> V {
        _mm512_set1_ps(f16_at(p.add(52)) * -2.0)
    }
}
