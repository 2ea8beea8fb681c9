//! The ternary types in AVX-512 registers. A lane holds the codes of several weights, two bits each, and `vpermps` reads four bits of it.
//! So two tables of finished weights, one by the lower two of the four bits and one by the upper two, spare every second shift.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::dequant512::{V, bytes16, f16_at};
use super::{Dequant, Isa};

/// -d, 0 and d by the lower two of four bits, then by the upper two.
#[inline(always)]
unsafe fn tables(d: f32) -> [V; 2] {
    let by_lower = _mm512_setr_ps(-1., 0., 1., 2., -1., 0., 1., 2., -1., 0., 1., 2., -1., 0., 1., 2.);
    let by_upper = _mm512_setr_ps(-1., -1., -1., -1., 0., 0., 0., 0., 1., 1., 1., 1., 2., 2., 2., 2.);
    [Avx512::mul(Avx512::splat(d), by_lower), Avx512::mul(Avx512::splat(d), by_upper)]
}

/// The weights of code `n` of each lane.
#[inline(always)]
unsafe fn code(lanes: __m512i, tables: &[V; 2], n: usize) -> V {
    _mm512_permutexvar_ps(_mm512_srl_epi32(lanes, _mm_cvtsi32_si128((n / 2 * 4) as i32)), tables[n % 2])
}

pub struct Tq2_0;

// SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has AVX-512.
unsafe impl Dequant<Avx512> for Tq2_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 66;
    type State = [V; 2];
    const SHARED: usize = 4;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [V; 2]) {
        *out = tables(f16_at(p.add(64)));
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[V; 2], j: usize) -> [V; 2] {
        let q = p.add(32 * (j / 4));
        [code(bytes16(q), s, j % 4), code(bytes16(q.add(16)), s, j % 4)]
    }
}

/// The five digits of each byte, two bits each, the first lowest.
#[repr(align(64))]
struct Digits([u16; 256]);

static DIGITS: Digits = {
    let (mut out, mut i) = ([0u16; 256], 0);
    while i < 256 {
        let (mut rest, mut n) = (i as u16, 0);
        while n < 5 {
            out[i] |= ((rest * 3) >> 8) << (2 * n);
            rest = (rest * 3) & 255;
            n += 1;
        }
        i += 1;
    }
    Digits(out)
};

/// The digits of 32 bytes.
#[inline(always)]
unsafe fn digits(bytes: __m256i) -> __m512i {
    let index = _mm512_cvtepu8_epi16(bytes);
    let mut found = [_mm512_setzero_si512(); 4];
    for i in 0..4 {
        let part = DIGITS.0.as_ptr().add(64 * i).cast::<__m512i>();
        found[i] = _mm512_permutex2var_epi16(_mm512_load_si512(part), index, _mm512_load_si512(part.add(1)));
    }
    let odd = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    let (below, above) = (_mm512_mask_blend_epi16(odd, found[0], found[1]), _mm512_mask_blend_epi16(odd, found[2], found[3]));
    _mm512_mask_blend_epi16(_mm512_test_epi16_mask(index, _mm512_set1_epi16(128)), below, above)
}

pub struct Tq1_0;

/// The digits of 52 bytes, a lane each, and the weights by digit.
pub struct Tq1State {
    lanes: [__m512i; 3],
    /// Four bytes' digits, in the order of the weights.
    last: __m512i,
    tables: [V; 2],
}

// SAFETY: as for TQ2_0.
unsafe impl Dequant<Avx512> for Tq1_0 {
    const BLOCK: usize = 256;
    const BYTES: usize = 54;
    type State = Tq1State;
    const SHARED: usize = 8;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut Tq1State) {
        let first = digits(_mm256_loadu_si256(p.cast()));
        // the bytes from 20 on, the last of which are no digits: within the block
        let second = digits(_mm256_loadu_si256(p.add(22).cast()));
        // bytes 32 to 47 and 48 to 51 are 10 and 26 lanes on
        let rotated = _mm512_permutexvar_epi16(
            _mm512_set_epi16(
                29, 28, 27, 26, 29, 28, 27, 26, 29, 28, 27, 26, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11,
                10,
            ),
            second,
        );
        let last = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(rotated));
        let digit = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
        *out = Tq1State {
            lanes: [
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(first)),
                _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64::<1>(first)),
                _mm512_cvtepu16_epi32(_mm512_castsi512_si256(rotated)),
            ],
            last: _mm512_srlv_epi32(last, digit),
            tables: tables(f16_at(p.add(52))),
        };
    }
    #[inline(always)]
    unsafe fn w32(_: *const u8, s: &Tq1State, j: usize) -> [V; 2] {
        match j {
            0..=4 => [code(s.lanes[0], &s.tables, j), code(s.lanes[1], &s.tables, j)],
            5 | 6 => [code(s.lanes[2], &s.tables, 2 * j - 10), code(s.lanes[2], &s.tables, 2 * j - 9)],
            _ => [code(s.lanes[2], &s.tables, 4), code(s.last, &s.tables, 0)],
        }
    }
}
