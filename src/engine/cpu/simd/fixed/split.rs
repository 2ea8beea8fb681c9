//! Splits inputs into fixed point.

use std::arch::x86_64::*;

use super::super::fixed_block::{FIXED_BLOCK, FixedBlock, PLANES, STEPS};
use super::codes::transposed;
use super::kernel;

/// The largest magnitude of an integer.
const LIMIT: f32 = ((1 << 21) - 1) as f32;

/// The smallest magnitude that fills an integer: 2^-100. Smaller inputs have fewer bits, so that no factor underflows.
const LEAST: f32 = f32::from_bits(27 << 23);

/// Splits a row of `len` floats into fixed blocks. `len` is a multiple of 32.
///
/// # Safety
/// `x` holds `len` floats, `out` has room for `len / FIXED_BLOCK` fixed blocks, rounded up, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn split(x: *const f32, len: usize, out: *mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        for i in 0..len.div_ceil(FIXED_BLOCK) {
            split_block(x.add(i * FIXED_BLOCK), FIXED_BLOCK.min(len - i * FIXED_BLOCK), &mut *out.add(i));
        }
    }
}

/// # Safety
/// `x` is valid for `len` floats, a multiple of 32 and at most `FIXED_BLOCK`, and the processor has the instruction set.
#[inline(always)]
unsafe fn split_block(x: *const f32, len: usize, out: &mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (mut inputs, mut largest) = ([_mm512_setzero_ps(); 16], _mm512_setzero_si512());
        for i in 0..16 {
            if 16 * i < len {
                inputs[i] = _mm512_loadu_ps(x.add(16 * i));
            }
            // magnitudes compared as integers keep their order, and a NaN is above all of them
            largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(inputs[i]), _mm512_set1_epi32(i32::MAX)));
        }
        let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
        // a NaN or an infinity makes every product NaN
        out.unit = if largest.is_finite() { largest.max(LEAST) / LIMIT } else { f32::NAN };
        let inverse = _mm512_set1_ps(LIMIT / largest.max(LEAST));
        for i in 0..16 {
            // the additions carry from each byte to the next higher one
            let n = _mm512_cvtps_epi32(_mm512_mul_ps(inputs[i], inverse));
            let middle = _mm512_srai_epi32::<8>(_mm512_add_epi32(n, _mm512_set1_epi32(128)));
            let upper = _mm512_srai_epi32::<8>(_mm512_add_epi32(middle, _mm512_set1_epi32(128)));
            for (plane, bytes) in out.planes[i / 4].iter_mut().zip([upper, middle, n]) {
                _mm_storeu_si128(plane[16 * (i % 4)..].as_mut_ptr().cast(), _mm512_cvtepi32_epi8(bytes));
            }
        }
        for j in 0..STEPS {
            let fours = kernel::dot(_mm512_set1_epi8(1), &kernel::planes(out, j));
            _mm512_storeu_si512(out.fours[j].as_mut_ptr().cast(), fours);
        }
        for i in 0..16 {
            out.sixteens[i] = out.fours[i / 4][i % 4 * 4..][..4].iter().sum::<i32>() as f32;
        }
        for i in 0..8 {
            out.thirty_twos[i] = out.sixteens[2 * i] + out.sixteens[2 * i + 1];
        }
        if len == FIXED_BLOCK {
            transpose(out);
        }
    }
}

/// Reorders the planes of a whole fixed block to match transposed codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn transpose(x: &mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); PLANES];
        for i in 0..PLANES {
            let mut plane = [_mm512_setzero_si512(); STEPS];
            for j in 0..STEPS {
                plane[j] = _mm512_load_si512(x.planes[j][i].as_ptr().cast());
            }
            let plane = transposed(plane);
            for j in 0..STEPS {
                sums[i] = _mm512_dpbusd_epi32(sums[i], _mm512_set1_epi8(1), plane[j]);
                _mm512_store_si512(x.planes[j][i].as_mut_ptr().cast(), plane[j]);
            }
        }
        let upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), sums[1]);
        _mm512_storeu_si512(x.upper.as_mut_ptr().cast(), upper);
        _mm512_storeu_si512(x.lower.as_mut_ptr().cast(), sums[2]);
    }
}
