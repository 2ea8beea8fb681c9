//! Dequantisation in AVX-512 registers. Four-bit codes index a table of 16 finished weights (`vpermps` reads only the low four
//! bits of each lane), so a weight costs one shuffle, whatever its scale and offset.
//! Rounding follows the scalar dequantisers step by step, so the bits are equal; `tests.rs` checks this.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::{Dequant, Isa};

pub(super) type V = __m512;
pub use super::codebook512::*;
pub use super::ternary512::*;

/// Every float16 as float32. A scale from this table is a memory operand, which the load unit broadcasts. A conversion would take three
/// operations of the vector units, which are the bottleneck of a decode step.
#[allow(long_running_const_eval)]
static HALVES: [f32; 1 << 16] = {
    let mut table = [0f32; 1 << 16];
    let mut i = 0;
    while i < table.len() {
        table[i] = model::dequant::f16_to_f32(i as u16);
        i += 1;
    }
    table
};

#[inline(always)]
pub(super) unsafe fn f16_at(p: *const u8) -> f32 {
    half_of(p.cast::<u16>().read_unaligned())
}

#[inline(always)]
pub(super) unsafe fn half_of(bits: u16) -> f32 {
    *HALVES.as_ptr().add(usize::from(bits))
}

/// Keeps a block's scales in memory, where broadcasts are free. The compiler would keep them in a register and shuffle.
#[inline(always)]
pub(super) unsafe fn in_memory<T>(scales: *mut T) {
    std::arch::asm!("", in("rax") scales, options(nostack, preserves_flags));
}

#[inline(always)]
unsafe fn iota() -> V {
    _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.)
}

/// 16 bytes, one per lane.
#[inline(always)]
pub(super) unsafe fn bytes16(p: *const u8) -> __m512i {
    _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))
}

#[inline(always)]
pub(super) unsafe fn low(table: V, bytes: __m512i) -> V {
    _mm512_permutexvar_ps(bytes, table)
}

#[inline(always)]
pub(super) unsafe fn high(table: V, bytes: __m512i) -> V {
    _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(bytes), table)
}

macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, |$p:ident| $body:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes; `dispatch` picks it only if the processor has AVX-512.
        unsafe impl Dequant<Avx512> for $name {
            const BLOCK: usize = 32;
            const BYTES: usize = $bytes;
            type State = ();
            #[inline(always)]
            unsafe fn state(_: *const u8, _: *mut ()) {}
            #[inline(always)]
            unsafe fn w32($p: *const u8, _: &(), _: usize) -> [V; 2] {
                $body
            }
        }
    };
}

pub(super) use blocks_of_32;

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
    // d · (q - 16) and 16 d are exact, so adding the fifth bit's part afterwards is exact too, and it leaves the shuffle unit free
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

#[inline(always)]
unsafe fn bf16x16(p: *const u8) -> V {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
}

/// Codes of four bits with a fifth bit in `bits`, which chooses between two tables.
#[inline(always)]
unsafe fn five_bits(bits: u32, b: __m512i, below: V, above: V) -> [V; 2] {
    let (b_low, b_high) = (b, _mm512_srli_epi32::<4>(b));
    [
        _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b_low, below), bits as u16, b_low, above),
        _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b_high, below), (bits >> 16) as u16, b_high, above),
    ]
}

/// Scales and minima of the eight sub-blocks of Q4_K and Q5_K, times the block's own.
pub struct Scales {
    d: [f32; 8],
    m: [f32; 8],
}

#[inline(always)]
unsafe fn bytes8(x: u64) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(x as i64)))
}

#[inline(always)]
unsafe fn k_scales(p: *const u8, out: *mut Scales) {
    // twelve bytes: six bits each of scales 0-3 and minima 0-3, then the low four bits of 4-7; their high two bits top the first eight
    let s = p.add(4);
    let a = s.cast::<u32>().read_unaligned();
    let b = s.add(4).cast::<u32>().read_unaligned();
    let c = s.add(8).cast::<u32>().read_unaligned();
    let scales = u64::from(a & 0x3f3f_3f3f) | u64::from((c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030)) << 32;
    let mins = u64::from(b & 0x3f3f_3f3f) | u64::from(((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030)) << 32;
    _mm256_storeu_ps((&raw mut (*out).d).cast(), _mm256_mul_ps(_mm256_set1_ps(f16_at(p)), bytes8(scales)));
    _mm256_storeu_ps((&raw mut (*out).m).cast(), _mm256_mul_ps(_mm256_set1_ps(f16_at(p.add(2))), bytes8(mins)));
    in_memory(out);
}

pub struct Q4K;

// SAFETY: as for the blocks of 32.
unsafe impl Dequant<Avx512> for Q4K {
    const BLOCK: usize = 256;
    const BYTES: usize = 144;
    type State = Scales;
    const SHARED: usize = 2;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut Scales) {
        k_scales(p, out);
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &Scales, j: usize) -> [V; 2] {
        let table = Avx512::sub(Avx512::mul(Avx512::splat(s.d[j]), iota()), Avx512::splat(s.m[j]));
        let q = p.add(16 + 32 * (j / 2));
        let (a, b) = (bytes16(q), bytes16(q.add(16)));
        if j.is_multiple_of(2) { [low(table, a), low(table, b)] } else { [high(table, a), high(table, b)] }
    }
}

pub struct Q5K;

// SAFETY: as for the blocks of 32.
unsafe impl Dequant<Avx512> for Q5K {
    const BLOCK: usize = 256;
    const BYTES: usize = 176;
    type State = Scales;
    const SHARED: usize = 2;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut Scales) {
        k_scales(p, out);
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &Scales, j: usize) -> [V; 2] {
        let (d, m) = (Avx512::splat(s.d[j]), Avx512::splat(s.m[j]));
        let below = Avx512::sub(Avx512::mul(d, iota()), m);
        let above = Avx512::sub(Avx512::mul(d, Avx512::add(iota(), Avx512::splat(16.0))), m);
        let fifth = _mm256_test_epi8_mask(_mm256_loadu_si256(p.add(16).cast()), _mm256_set1_epi8((1u8 << j) as i8));
        let q = p.add(48 + 32 * (j / 2));
        let (mut a, mut b) = (bytes16(q), bytes16(q.add(16)));
        if !j.is_multiple_of(2) {
            (a, b) = (_mm512_srli_epi32::<4>(a), _mm512_srli_epi32::<4>(b));
        }
        [
            _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(a, below), fifth as u16, a, above),
            _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(b, below), (fifth >> 16) as u16, b, above),
        ]
    }
}

/// 32 two-bit codes of group `j`, in the low bits of each lane.
#[inline(always)]
unsafe fn two_bits(p: *const u8, j: usize) -> [__m512i; 2] {
    let (q, shift) = (p.add(32 * (j / 4)), _mm_cvtsi32_si128(2 * (j % 4) as i32));
    [_mm512_srl_epi32(bytes16(q), shift), _mm512_srl_epi32(bytes16(q.add(16)), shift)]
}

/// 0, 1, 2, 3 in every group of four lanes.
#[inline(always)]
unsafe fn fours() -> V {
    _mm512_setr_ps(0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3., 0., 1., 2., 3.)
}

pub struct Q2K;

// SAFETY: as for the blocks of 32.
unsafe impl Dequant<Avx512> for Q2K {
    const BLOCK: usize = 256;
    const BYTES: usize = 84;
    /// Scale and minimum of each 16 weights.
    type State = [[f32; 16]; 2];
    const SHARED: usize = 4;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [[f32; 16]; 2]) {
        let bytes = bytes16(p);
        let scales = _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
        Avx512::store((&raw mut (*out)[0]).cast(), Avx512::mul(Avx512::splat(f16_at(p.add(80))), scales));
        let minima = _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes));
        Avx512::store((&raw mut (*out)[1]).cast(), Avx512::mul(Avx512::splat(f16_at(p.add(82))), minima));
        in_memory(out);
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[[f32; 16]; 2], j: usize) -> [V; 2] {
        let [a, b] = two_bits(p.add(16), j);
        let first = Avx512::sub(Avx512::mul(Avx512::splat(s[0][2 * j]), fours()), Avx512::splat(s[1][2 * j]));
        let second = Avx512::sub(Avx512::mul(Avx512::splat(s[0][2 * j + 1]), fours()), Avx512::splat(s[1][2 * j + 1]));
        [low(first, a), low(second, b)]
    }
}

pub struct Q3K;

// SAFETY: as for the blocks of 32.
unsafe impl Dequant<Avx512> for Q3K {
    const BLOCK: usize = 256;
    const BYTES: usize = 110;
    /// One scale for each 16 weights.
    type State = [f32; 16];
    const SHARED: usize = 4;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [f32; 16]) {
        let scales = model::dequant::q3_k_scales(&*p.add(96).cast::<[u8; 12]>());
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(scales.as_ptr().cast())));
        Avx512::store(out.cast(), Avx512::mul(Avx512::splat(f16_at(p.add(108))), scales));
        in_memory(out);
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[f32; 16], j: usize) -> [V; 2] {
        let [a, b] = two_bits(p.add(32), j);
        let third = _mm256_test_epi8_mask(_mm256_loadu_si256(p.cast()), _mm256_set1_epi8((1u8 << j) as i8));
        let below = Avx512::sub(fours(), Avx512::splat(4.0));
        let (first, second) = (Avx512::splat(s[2 * j]), Avx512::splat(s[2 * j + 1]));
        let (a_below, b_below) = (low(Avx512::mul(first, below), a), low(Avx512::mul(second, below), b));
        [
            _mm512_mask_permutexvar_ps(a_below, third as u16, a, Avx512::mul(first, fours())),
            _mm512_mask_permutexvar_ps(b_below, (third >> 16) as u16, b, Avx512::mul(second, fours())),
        ]
    }
}

#[inline(always)]
unsafe fn signed16(b: __m128i, scale: f32) -> V {
    Avx512::mul(Avx512::splat(scale), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)))
}

pub struct Q6K;

// SAFETY: as for the blocks of 32.
unsafe impl Dequant<Avx512> for Q6K {
    const BLOCK: usize = 256;
    const BYTES: usize = 210;
    /// One scale for each 16 weights.
    type State = [f32; 16];
    const SHARED: usize = 4;
    #[inline(always)]
    unsafe fn state(p: *const u8, out: *mut [f32; 16]) {
        let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.add(192).cast())));
        Avx512::store(out.cast(), Avx512::mul(Avx512::splat(f16_at(p.add(208))), scales));
        in_memory(out);
    }
    #[inline(always)]
    unsafe fn w32(p: *const u8, s: &[f32; 16], j: usize) -> [V; 2] {
        let (half, quarter) = (j / 4, j % 4);
        let ql = _mm256_loadu_si256(p.add(64 * half + 32 * (quarter % 2)).cast());
        let qh = _mm256_loadu_si256(p.add(128 + 32 * half).cast());
        let nibble = if quarter < 2 { ql } else { _mm256_srli_epi16::<4>(ql) };
        // the two high bits move to bits 4 and 5
        let top = match quarter {
            0 => _mm256_slli_epi16::<4>(qh),
            1 => _mm256_slli_epi16::<2>(qh),
            2 => qh,
            _ => _mm256_srli_epi16::<2>(qh),
        };
        let code = _mm256_or_si256(_mm256_and_si256(nibble, _mm256_set1_epi8(15)), _mm256_and_si256(top, _mm256_set1_epi8(48)));
        let code = _mm256_sub_epi8(code, _mm256_set1_epi8(32));
        [signed16(_mm256_castsi256_si128(code), s[2 * j]), signed16(_mm256_extracti128_si256::<1>(code), s[2 * j + 1])]
    }
}
