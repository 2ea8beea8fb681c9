//! Implements [`Isa`] with AVX2, FMA and F16C. A vector is two registers.

use std::arch::x86_64::*;

use super::Isa;
use super::halves::f16_at;

#[derive(Clone, Copy)]
pub struct Avx2;

pub(super) type V = (__m256, __m256);

macro_rules! both {
    ($f:ident, $($a:ident),+) => {
        ($f($($a.0),+), $f($($a.1),+))
    };
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn pow2_half(n: __m256) -> __m256 {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)))) }
}

/// # Safety
/// The processor has AVX.
#[inline(always)]
unsafe fn quarter(v: V) -> __m128 {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // lanes (i, i + 8), then (i, i + 4)
        let s = _mm256_add_ps(v.0, v.1);
        _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s))
    }
}

// SAFETY: `dispatch` chooses it only if the processor has AVX2, FMA and F16C.
unsafe impl Isa for Avx2 {
    type V = V;
    const NAME: &'static str = "avx2";
    const ROWS: usize = 2;
    const K_TILE: usize = 1024;
    const TOKENS: usize = 32;

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { (_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { (_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { (_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            let half = |p: *const i8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            (half(p), half(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { Self::splat(f16_at(p.cast())) }
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_add_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_sub_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_mul_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_div_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_max_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_min_ps, a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { both!(_mm256_fmadd_ps, a, b, c) }
    }
    #[inline(always)]
    unsafe fn pow2(n: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { (pow2_half(n.0), pow2_half(n.1)) }
    }
    #[inline(always)]
    unsafe fn round(v: V) -> V {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { (_mm256_round_ps::<8>(v.0), _mm256_round_ps::<8>(v.1)) }
    }
    #[inline(always)]
    unsafe fn reduce_add(v: V) -> f32 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            let s = quarter(v);
            let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps::<1>(s, s)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_add4([a, b, c, d]: [V; 4], out: *mut f32) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            let (a, b, c, d) = (quarter(a), quarter(b), quarter(c), quarter(d));
            let ab = _mm_add_ps(_mm_shuffle_ps::<0x44>(a, b), _mm_shuffle_ps::<0xEE>(a, b));
            let cd = _mm_add_ps(_mm_shuffle_ps::<0x44>(c, d), _mm_shuffle_ps::<0xEE>(c, d));
            _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps::<0x88>(ab, cd), _mm_shuffle_ps::<0xDD>(ab, cd)));
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: V) -> f32 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            let m = _mm256_max_ps(v.0, v.1);
            let m = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps::<1>(m));
            let m = _mm_max_ps(m, _mm_movehl_ps(m, m));
            _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps::<1>(m, m)))
        }
    }
}
