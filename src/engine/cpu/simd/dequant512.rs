//! Widens the float types in AVX-512 registers. `fixed` multiplies the others as integers. The bits are those of the scalar dequantisers,
//! which `tests.rs` checks.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::{Dequant, Isa};

type V = __m512;

macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, |$p:ident| $body:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes; `dispatch` chooses it only if the processor has AVX-512.
        unsafe impl Dequant<Avx512> for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            type State = ();
            #[inline(always)]
            unsafe fn state(_: *const u8, _: *mut ()) {}
            #[inline(always)]
            unsafe fn w32($p: *const u8, _: &(), _: usize) -> [V; 2] {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe { $body }
            }
        }
    };
}

blocks_of_32!(F32, 128, |p| [Avx512::load(p.cast()), Avx512::load(p.add(64).cast())]);

blocks_of_32!(F16, 64, |p| [_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())), _mm512_cvtph_ps(_mm256_loadu_si256(p.add(32).cast()))]);

blocks_of_32!(Bf16, 64, |p| [bf16x16(p), bf16x16(p.add(32))]);

/// # Safety
/// `p` is valid for 32 bytes, and the processor has AVX-512 F.
#[inline(always)]
unsafe fn bf16x16(p: *const u8) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())))) }
}
