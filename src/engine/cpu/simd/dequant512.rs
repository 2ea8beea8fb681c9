//! Dequantises in AVX-512 registers, for the types that `fixed` does not multiply as integers. Four-bit codes index a table of 16 finished
//! weights (`vpermps` reads only the low four bits of each lane), so a weight costs one shuffle, whatever its scale and offset. Rounding
//! follows the scalar dequantisers step by step, so the bits are equal, which `tests.rs` checks. `dequant256` has other algorithms, since
//! AVX2 has no such table: one source for both would share little more than the sizes of blocks.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::halves::f16_at;
use super::{Dequant, Isa};

type V = __m512;

/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn iota() -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.) }
}

/// Loads 16 bytes, one per lane.
///
/// # Safety
/// `p` is valid for 16 bytes, and the processor has AVX-512 F.
#[inline(always)]
unsafe fn bytes16(p: *const u8) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
}

/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn low(table: V, bytes: __m512i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_permutexvar_ps(bytes, table) }
}

/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn high(table: V, bytes: __m512i) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), table) }
}

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

blocks_of_32!(Q4_0, 18, |p| {
    let table = Avx512::mul(Avx512::splat(f16_at(p)), Avx512::sub(iota(), Avx512::splat(8.0)));
    let b = bytes16(p.add(2));
    [low(table, b), high(table, b)]
});

blocks_of_32!(Q4_1, 20, |p| {
    let table = Avx512::add(Avx512::mul(Avx512::splat(f16_at(p)), iota()), Avx512::splat(f16_at(p.add(2))));
    let b = bytes16(p.add(4));
    [low(table, b), high(table, b)]
});

blocks_of_32!(Q5_0, 22, |p| {
    // d · (q - 16) and 16 d are exact, so adding the fifth bit's part afterwards is also exact, and leaves the shuffle unit free
    let d = Avx512::splat(f16_at(p));
    let (table, fifth) = (Avx512::mul(d, Avx512::sub(iota(), Avx512::splat(16.0))), Avx512::mul(d, Avx512::splat(16.0)));
    let bits = p.add(2).cast::<u32>().read_unaligned();
    let b = bytes16(p.add(6));
    let (low, high) = (low(table, b), high(table, b));
    [_mm512_mask_add_ps(low, bits as u16, low, fifth), _mm512_mask_add_ps(high, (bits >> 16) as u16, high, fifth)]
});

blocks_of_32!(Q5_1, 24, |p| {
    let (d, m) = (Avx512::splat(f16_at(p)), Avx512::splat(f16_at(p.add(2))));
    let below = Avx512::add(Avx512::mul(d, iota()), m);
    let above = Avx512::add(Avx512::mul(d, Avx512::add(iota(), Avx512::splat(16.0))), m);
    five_bits(p.add(4).cast::<u32>().read_unaligned(), bytes16(p.add(8)), below, above)
});

blocks_of_32!(Q8_0, 34, |p| {
    let d = Avx512::splat(f16_at(p));
    [
        Avx512::mul(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(2).cast())))),
        Avx512::mul(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(18).cast())))),
    ]
});

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

/// Weights of four-bit codes whose fifth bit, in `bits`, chooses between two tables.
///
/// # Safety
/// The processor has AVX-512 F.
#[inline(always)]
unsafe fn five_bits(bits: u32, b: __m512i, below: V, above: V) -> [V; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (b_low, b_high) = (b, _mm512_srli_epi32::<4>(b));
        [
            _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b_low, below), bits as u16, b_low, above),
            _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b_high, below), (bits >> 16) as u16, b_high, above),
        ]
    }
}
