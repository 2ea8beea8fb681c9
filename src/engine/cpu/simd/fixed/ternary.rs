//! Decodes the ternary types.

use std::arch::x86_64::*;

use super::super::halves::f16_at;
use super::codes::{Codes, Scales, V};
use super::superblocks::{lanes, superblocks, two_bits};

/// # Safety
/// `p` is valid for a block of 66 bytes and `out` for a write, and the processor has the instruction set.
#[inline(always)]
unsafe fn tq2_scales(p: *const u8, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // a code that is not shifted is 1, 4, 16 or 64 times too large
        let down = _mm512_setr_ps(1., 0.25, 0.0625, 0.015_625, 1., 0.25, 0.0625, 0.015_625, 0., 0., 0., 0., 0., 0., 0., 0.);
        let d = _mm512_set1_ps(f16_at(p.add(64)));
        *out = Scales { scales: _mm512_mul_ps(d, down), minima: d };
    }
}

superblocks!(Tq2_0, 66, 32, |p, out| tq2_scales(p, out), whole: |p| two_bits(p));

/// 64 times (three minus the first base-3 digit of the fraction byte / 256), computed from the bytes' complements.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn digits(complements: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // Averages round up, so averages of complements stand for three quarters of a byte, rounded down. The upper two bits of the result
        // are the digit. The volatile read hides the number from the compiler, which would otherwise write an average as three operations.
        let half = _mm512_avg_epu8(complements, std::ptr::read_volatile(ALL.0.as_ptr().cast()));
        _mm512_and_si512(_mm512_avg_epu8(complements, half), _mm512_set1_epi8(-64))
    }
}

#[repr(align(64))]
struct Line([u8; 64]);

static ALL: Line = Line([255; 64]);

const _: () = {
    let mut byte = 0u32;
    while byte < 256 {
        assert!(((byte + byte / 2) / 2) >> 6 == (3 * byte) >> 8);
        byte += 1;
    }
};

/// The complements of the bytes' products with the powers of three in `by`. Each power applies to two bytes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn powers(bytes: __m512i, by: __m512i) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let upper = _mm512_set1_epi16(0xff00u16 as i16);
        let (even, odd) = (_mm512_mullo_epi16(bytes, by), _mm512_mullo_epi16(_mm512_and_si512(bytes, upper), by));
        // the complement of `odd` where the mask is set, the complement of `even` elsewhere
        _mm512_ternarylogic_epi64::<0x35>(upper, odd, even)
    }
}

/// The word of a TQ1_0 block, and the digit in that word, of the four weights that start at 64 · k + 16 · l + 4 · i.
const fn tq1_place(l: i32, k: i32, i: i32) -> (i32, u32) {
    match 4 * k + l {
        group @ 0..10 => (4 * (group % 2) + i, group as u32 / 2),
        group @ 10..15 => (8 + i, group as u32 - 10),
        _ => (12, i as u32),
    }
}

const fn tq1_word(l: i32, k: i32, i: i32) -> i32 {
    tq1_place(l, k, i).0
}

/// The power of three that moves a digit to the first place, in both halves of a word.
const fn tq1_power(l: i32, k: i32, i: i32) -> i32 {
    0x1_0001 * 3i32.pow(tq1_place(l, k, i).1)
}

/// # Safety
/// `p` is valid for a block of 54 bytes, and the processor has the instruction set.
#[inline(always)]
unsafe fn tq1_codes(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // five digits of 32 bytes, five of 16 bytes and four of four bytes
        let bytes = _mm512_maskz_loadu_epi8((1 << 52) - 1, p.cast());
        let mut out = [_mm512_setzero_si512(); 4];
        out[0] = digits(powers(_mm512_permutexvar_epi32(lanes!(|l, k| tq1_word(l, k, 0)), bytes), lanes!(|l, k| tq1_power(l, k, 0))));
        out[1] = digits(powers(_mm512_permutexvar_epi32(lanes!(|l, k| tq1_word(l, k, 1)), bytes), lanes!(|l, k| tq1_power(l, k, 1))));
        out[2] = digits(powers(_mm512_permutexvar_epi32(lanes!(|l, k| tq1_word(l, k, 2)), bytes), lanes!(|l, k| tq1_power(l, k, 2))));
        out[3] = digits(powers(_mm512_permutexvar_epi32(lanes!(|l, k| tq1_word(l, k, 3)), bytes), lanes!(|l, k| tq1_power(l, k, 3))));
        out
    }
}

/// # Safety
/// `p` is valid for a block of 54 bytes and `out` for a write, and the processor has the instruction set.
#[inline(always)]
unsafe fn tq1_scales(p: *const u8, out: *mut Scales) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let d = f16_at(p.add(52));
        *out = Scales { scales: _mm512_set1_ps(d * (-1.0 / 64.0)), minima: _mm512_set1_ps(d * -2.0) };
    }
}

superblocks!(Tq1_0, 54, 32, |p, out| tq1_scales(p, out), whole: |p| tq1_codes(p));
