//! Products of quantised weights and inputs in fixed point, for AVX-512 with VNNI.
//!
//! A row of input is split once per product. In each stretch of 256 columns an input becomes an integer n of 22 bits with x ≈ n · unit, where
//! the largest magnitude is 2^21 - 1 units. The three bytes of n lie in three planes: n = 65536 · a + 256 · b + c, all of them signed. So an
//! input is off by at most 2^-22 of the largest, and a product by less than what sums of float32 lose. Two planes would be faster by up to a
//! fifth, but large inputs among small ones cost them logits: 7e-3 of a standard deviation with Gemma 3.
//!
//! Weights stay codes of one byte. `vpdpbusd` multiplies 64 codes by a plane and adds four neighbouring products to a lane of 32 bits. Codes
//! and planes of a whole stretch are transposed, so that the 16 products of a lane share a scale. A lane is multiplied by it in float32.
//!
//! Sums cannot overflow: a code is at most 255, so 16 products with a byte are below 16 · 255 · 128 < 2^19. The sums with the upper two planes
//! are put together as integers, and those with the lowest as floats. At the end of a row, four products with n are below 4 · 255 · 2^21 < 2^31.

use std::arch::x86_64::*;

mod books;
mod kernel;
mod legacy;
mod superblocks;
mod ternary;

use super::linear::{Args, Kernel, LinearFn};
use super::stretch::{PLANES, STEPS, STRETCH, Stretch};

type V = __m512;

/// The largest magnitude of an integer.
const LIMIT: f32 = ((1 << 21) - 1) as f32;

macro_rules! kernels {
    ($($id:literal $module:ident::$type:ident),* $(,)?) => {
        /// The linear layer for a ggml type id.
        pub fn kernel_of(id: u32) -> Option<Kernel> {
            let run: LinearFn = match id {
                $($id => product::<$module::$type>,)*
                _ => return None,
            };
            Some(Kernel { run, split: Some(split) })
        }
    };
}

kernels!(
    2 legacy::Q4_0, 3 legacy::Q4_1, 6 legacy::Q5_0, 7 legacy::Q5_1, 8 legacy::Q8_0,
    10 superblocks::Q2K, 11 superblocks::Q3K, 12 superblocks::Q4K, 13 superblocks::Q5K, 14 superblocks::Q6K,
    16 books::Iq2Xxs, 17 books::Iq2Xs, 18 books::Iq3Xxs, 19 books::Iq1S, 20 legacy::Iq4Nl, 21 books::Iq3S, 22 books::Iq2S,
    23 books::Iq4Xs, 29 books::Iq1M, 34 ternary::Tq1_0, 35 ternary::Tq2_0, 39 legacy::Mxfp4, 40 legacy::Nvfp4,
);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn product<D: Codes>(a: &Args) {
    kernel::linear::<D>(a)
}

/// Splits a row of `len` floats, a multiple of 32, into stretches.
///
/// # Safety
/// `x` holds `len` floats, `out` has room for `len / STRETCH` stretches, rounded up, and the processor has the instruction set.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn split(x: *const f32, len: usize, out: *mut Stretch) {
    for i in 0..len.div_ceil(STRETCH) {
        split_stretch(x.add(i * STRETCH), STRETCH.min(len - i * STRETCH), &mut *out.add(i));
    }
}

#[inline(always)]
unsafe fn split_stretch(x: *const f32, len: usize, out: &mut Stretch) {
    let (mut inputs, mut largest) = ([_mm512_setzero_ps(); 16], _mm512_setzero_si512());
    for i in 0..16 {
        if 16 * i < len {
            inputs[i] = _mm512_loadu_ps(x.add(16 * i));
        }
        // magnitudes as integers are in the same order, and a NaN is above all of them
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_castps_si512(inputs[i]), _mm512_set1_epi32(i32::MAX)));
    }
    let largest = f32::from_bits(_mm512_reduce_max_epu32(largest));
    // a NaN or an infinity makes every product NaN
    out.unit = if largest.is_finite() { largest.max(LEAST) / LIMIT } else { f32::NAN };
    let inverse = _mm512_set1_ps(LIMIT / largest.max(LEAST));
    for i in 0..16 {
        // the sums carry from each byte to the one above
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
    if len == STRETCH {
        transpose(out);
    }
}

/// Puts the planes of a whole stretch into the order of transposed codes.
#[inline(always)]
unsafe fn transpose(x: &mut Stretch) {
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

/// Transposes the four times four words of 32 bits of each 128-bit lane. So a lane of 32 bits belongs to the same 16 columns in every
/// register, and its sums share a scale.
#[inline(always)]
unsafe fn transposed([a, b, c, d]: [__m512i; STEPS]) -> [__m512i; STEPS] {
    let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (above, beyond) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab, cd),
        _mm512_unpackhi_epi64(ab, cd),
        _mm512_unpacklo_epi64(above, beyond),
        _mm512_unpackhi_epi64(above, beyond),
    ]
}

/// The least magnitude that fills an integer: 2^-100. Smaller inputs have fewer bits, and no factor underflows.
const LEAST: f32 = f32::from_bits(27 << 23);

/// Decodes a tensor type: weight = scale · (code - `OFFSET`) - minimum. A type gives its codes by step or transposed, and either follows from
/// the other. At the end of a row, where less than a stretch is left, they are taken by step.
///
/// # Safety
/// `p` must be valid for `blocks` blocks and for all blocks of a step, and `j` must be below `STEPS`.
unsafe trait Codes {
    /// Weights per block.
    const BLOCK: usize;
    /// Bytes per block.
    const BYTES: usize;
    /// Weights that share a scale and a minimum: 16 or 32.
    const GROUP: usize;
    /// A power of two, or 0.
    const OFFSET: i32 = 0;
    const MINIMA: bool = false;
    /// What is computed once per 256 weights.
    type State;
    /// Writes the state of 256 weights, or of fewer blocks at the end of a row. It is written in place, because a copy would wait for stores
    /// of other widths.
    unsafe fn state(p: *const u8, blocks: usize, out: *mut Self::State);
    /// The codes of the weights from 64 · j on.
    #[inline(always)]
    unsafe fn codes(p: *const u8, s: &Self::State, j: usize) -> __m512i {
        transposed(Self::whole(p, s))[j]
    }
    /// The codes of a whole stretch, transposed.
    #[inline(always)]
    unsafe fn whole(p: *const u8, s: &Self::State) -> [__m512i; STEPS] {
        transposed([Self::codes(p, s, 0), Self::codes(p, s, 1), Self::codes(p, s, 2), Self::codes(p, s, 3)])
    }
    /// The scales of all groups, in ascending order.
    unsafe fn scales(state: &Self::State) -> V;
    /// The minima of all groups, in ascending order.
    unsafe fn minima(state: &Self::State) -> V;
}

/// Scales and minima of 256 weights.
struct Scales {
    scales: V,
    minima: V,
}

#[cfg(test)]
mod tests;
