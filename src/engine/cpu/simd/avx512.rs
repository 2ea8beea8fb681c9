//! Implements [`Isa`] with AVX-512 (F, BW, DQ, VL).

use std::arch::x86_64::*;

use super::Isa;
use super::halves::f16_at;

#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY: `dispatch` chooses it only if the processor has AVX-512.
unsafe impl Isa for Avx512 {
    type V = __m512;
    const NAME: &'static str = "avx512";
    const ROWS: usize = 4;
    const K_TILE: usize = 2048;
    const TOKENS: usize = 6;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u16) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_set1_ps(f16_at(p.cast())) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn pow2(n: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)))) }
    }
    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_roundscale_ps::<0>(v) }
    }
    #[inline(always)]
    unsafe fn reduce_add(v: __m512) -> f32 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            let mut out = [0f32; 4];
            Self::reduce_add4([v, v, v, v], out.as_mut_ptr());
            out[0]
        }
    }
    #[inline(always)]
    unsafe fn reduce_add4([a, b, c, d]: [__m512; 4], out: *mut f32) {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe {
            // 8 lanes of a next to 8 of b, then 4 lanes of each of the four vectors, then within the 128-bit lanes
            let ab = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xEE>(a, b));
            let cd = _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xEE>(c, d));
            let s = _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xDD>(ab, cd));
            let s = _mm512_add_ps(s, _mm512_permute_ps::<0x4E>(s));
            let s = _mm512_add_ps(s, _mm512_permute_ps::<0xB1>(s));
            let index = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(index, s)));
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(v: __m512) -> f32 {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { _mm512_reduce_max_ps(v) }
    }
}
