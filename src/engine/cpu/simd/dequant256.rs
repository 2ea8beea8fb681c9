//! Dequantises in AVX2 registers, for types whose scalar dequantisers compile to slow code. Codes become signed bytes (four-bit codes
//! through a table, by byte shuffle), then float32, and are then multiplied by their scale. The bits equal those of the scalar
//! dequantisers, which `tests.rs` checks.
//!
//! A byte shuffle puts a code into the highest byte of a lane, which multiplies it by 2^24 and keeps its sign. In return, scales are
//! divided by 2^24. Both steps are exact if the scale is far above the smallest float.

use std::arch::x86_64::*;

use super::avx2::{Avx2, V};
use super::{Dequant, Isa};
use model::codebook;

/// 2^-24: the factor of the scales of codes in the highest bytes.
const DOWN: f32 = 1.0 / 16_777_216.0;

/// Loads 16 bytes into both halves of the register.
///
/// # Safety
/// `p` is valid for 16 bytes, and the processor has AVX2.
#[inline(always)]
unsafe fn both(p: *const u8) -> __m256i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())) }
}

/// Multiplies 16 codes, which both halves of the register hold, by a scale that is 2^24 times too small.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn scaled(codes: __m256i, scale: f32) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        const NO: i8 = -128;
        let eight = |from: i8| {
            let half = |from: i8| [NO, NO, NO, from, NO, NO, NO, from + 1, NO, NO, NO, from + 2, NO, NO, NO, from + 3];
            let places = _mm256_set_m128i(_mm_loadu_si128(half(from + 4).as_ptr().cast()), _mm_loadu_si128(half(from).as_ptr().cast()));
            _mm256_mul_ps(_mm256_set1_ps(scale), _mm256_cvtepi32_ps(_mm256_shuffle_epi8(codes, places)))
        };
        (eight(0), eight(8))
    }
}

/// Multiplies 32 codes by one scale per half.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn weights(codes: [__m256i; 2], first: f32, second: f32) -> [V; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe { [scaled(codes[0], first), scaled(codes[1], second)] }
}

/// # Safety
/// `p` is valid for two bytes, and the processor has F16C.
#[inline(always)]
unsafe fn half_at(p: *const u8) -> f32 {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(p.cast::<u16>().read_unaligned())))) }
}

/// The 32 nibbles in 16 bytes, low nibbles first.
///
/// # Safety
/// `p` is valid for 16 bytes, and the processor has AVX2.
#[inline(always)]
unsafe fn four_bits(p: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (bytes, mask) = (both(p), _mm256_set1_epi8(15));
        [_mm256_and_si256(bytes, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask)]
    }
}

/// All ones in each byte whose bit in `bits` is set.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn set_bits(bits: u32) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let bits = _mm256_set1_epi32(bits as i32);
        [0, 2].map(|byte| {
            let byte_of = _mm256_set_epi64x(
                0x0101_0101_0101_0101 * (byte + 1),
                0x0101_0101_0101_0101 * byte,
                0x0101_0101_0101_0101 * (byte + 1),
                0x0101_0101_0101_0101 * byte,
            );
            _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(bits, byte_of), bit_of), bit_of)
        })
    }
}

macro_rules! blocks_of_32 {
    ($name:ident, $bytes:literal, |$p:ident| $body:expr) => {
        pub struct $name;
        // SAFETY: reads within the block's bytes; `dispatch` chooses it only if the processor has AVX2 and F16C.
        unsafe impl Dequant<Avx2> for $name {
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

blocks_of_32!(F16, 64, |p| [halves16(p), halves16(p.add(32))]);

/// # Safety
/// `p` is valid for 32 bytes, and the processor has F16C.
#[inline(always)]
unsafe fn halves16(p: *const u8) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { (_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))) }
}

blocks_of_32!(Q4_0, 18, |p| {
    let d = DOWN * half_at(p);
    weights(four_bits(p.add(2)).map(|codes| _mm256_sub_epi8(codes, _mm256_set1_epi8(8))), d, d)
});

blocks_of_32!(Q4_1, 20, |p| added(four_bits(p.add(4)), p));

blocks_of_32!(Q5_0, 22, |p| {
    let (d, [low, high]) = (DOWN * half_at(p), four_bits(p.add(6)));
    let [first, second] = set_bits(p.add(2).cast::<u32>().read_unaligned());
    // a clear fifth bit subtracts 16
    let code = |code, set| _mm256_or_si256(code, _mm256_andnot_si256(set, _mm256_set1_epi8(-16)));
    weights([code(low, first), code(high, second)], d, d)
});

blocks_of_32!(Q5_1, 24, |p| {
    let [low, high] = four_bits(p.add(8));
    let [first, second] = set_bits(p.add(4).cast::<u32>().read_unaligned());
    let code = |code, set| _mm256_or_si256(code, _mm256_and_si256(set, _mm256_set1_epi8(16)));
    added([code(low, first), code(high, second)], p)
});

/// d · code + m, for a block that begins with d and m.
///
/// # Safety
/// `p` is valid for four bytes, and the processor has AVX2 and F16C.
#[inline(always)]
unsafe fn added(codes: [__m256i; 2], p: *const u8) -> [V; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (d, m) = (DOWN * half_at(p), Avx2::splat(half_at(p.add(2))));
        weights(codes, d, d).map(|w| Avx2::add(w, m))
    }
}

/// The levels of the 32 nibbles in 16 bytes, low nibbles first.
///
/// # Safety
/// `p` is valid for 16 bytes, and the processor has AVX2.
#[inline(always)]
unsafe fn levels(p: *const u8, levels: &[i8; 16]) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe { four_bits(p).map(|codes| _mm256_shuffle_epi8(both(levels.as_ptr().cast()), codes)) }
}

blocks_of_32!(Iq4Nl, 18, |p| {
    let d = DOWN * half_at(p);
    weights(levels(p.add(2), &codebook::IQ4_LEVELS), d, d)
});

// The smallest scales of this type leave no room for the division by 2^24, so the codes are divided instead.
blocks_of_32!(Mxfp4, 17, |p| {
    let scale = Avx2::splat(codebook::e8m0_half(*p));
    weights(levels(p.add(1), &codebook::MXFP4_LEVELS), DOWN, DOWN).map(|w| Avx2::mul(scale, w))
});

pub struct Nvfp4;

// SAFETY: as for the blocks of 32 weights.
unsafe impl Dequant<Avx2> for Nvfp4 {
    const BLOCK: usize = 64;
    const BYTES: usize = 36;
    type State = ();
    #[inline(always)]
    unsafe fn state(_: *const u8, _: *mut ()) {}
    #[inline(always)]
    unsafe fn w32(p: *const u8, _: &(), j: usize) -> [V; 2] {
        // SAFETY: the caller keeps the conditions of the trait.
        unsafe { [nvfp4(p, 2 * j), nvfp4(p, 2 * j + 1)] }
    }
}

/// Part `i` of an NVFP4 block, 16 weights: the low nibbles of eight bytes, then their high nibbles.
///
/// # Safety
/// `p` is valid for a block of 36 bytes, `i` is below 4, and the processor has AVX2.
#[inline(always)]
unsafe fn nvfp4(p: *const u8, i: usize) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bytes = _mm_loadl_epi64(p.add(4 + 8 * i).cast());
        let codes = _mm_and_si128(_mm_unpacklo_epi64(bytes, _mm_srli_epi16::<4>(bytes)), _mm_set1_epi8(15));
        let levels = _mm256_shuffle_epi8(both(codebook::MXFP4_LEVELS.as_ptr().cast()), _mm256_broadcastsi128_si256(codes));
        scaled(levels, DOWN * codebook::UE4M3_HALVES[usize::from(*p.add(i))])
    }
}

/// Multiplies eight small integers, one per byte, by `d`.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn eight(d: f32, bytes: u64) -> __m256 {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm256_mul_ps(_mm256_set1_ps(d), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bytes as i64)))) }
}

/// Writes eight floats at place 8 · `i`.
///
/// # Safety
/// `out` is valid for writes, `i` is below `N` / 8, and the processor has AVX.
#[inline(always)]
unsafe fn put<const N: usize>(out: *mut [f32; N], i: usize, eight: __m256) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        _mm256_storeu_ps(out.cast::<f32>().add(8 * i), eight);
    }
}

/// The bits in `mask` of the 32 bytes at `p`, shifted right by `by` bits.
///
/// # Safety
/// `p` is valid for 32 bytes, and the processor has AVX2.
#[inline(always)]
unsafe fn some_bits(p: *const u8, by: usize, mask: i8) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (by, mask) = (_mm_cvtsi64_si128(by as i64), _mm256_set1_epi8(mask));
        [both(p), both(p.add(16))].map(|bytes| _mm256_and_si256(_mm256_srl_epi16(bytes, by), mask))
    }
}

/// The 32 two-bit codes of group `j`.
///
/// # Safety
/// `p` is valid for 64 bytes, `j` is below 8, and the processor has AVX2.
#[inline(always)]
unsafe fn two_bits(p: *const u8, j: usize) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe { some_bits(p.add(32 * (j / 4)), 2 * (j % 4), 3) }
}

/// `then` in each byte at `p` whose bit `j` is set, else 0 [32 bytes].
///
/// # Safety
/// `p` is valid for 32 bytes, `j` is below 8, and the processor has AVX2.
#[inline(always)]
unsafe fn where_bit(p: *const u8, j: usize, then: i8) -> [__m256i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bit = _mm256_set1_epi8((1u8 << j) as i8);
        [both(p), both(p.add(16))]
            .map(|bytes| _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(then)))
    }
}

/// Scales of `N` groups, and the minima to subtract.
#[repr(align(32))]
pub struct Groups<const N: usize> {
    scales: [f32; N],
    minima: [f32; N],
}

macro_rules! blocks_of_256 {
    ($name:ident, $bytes:literal, $state:ty, |$p:ident, $out:ident| $make:expr, |$q:ident, $s:ident, $j:ident| $weights:expr) => {
        pub struct $name;
        // SAFETY: as for the blocks of 32 weights.
        unsafe impl Dequant<Avx2> for $name {
            const BLOCK: usize = 256;
            const BYTES: usize = $bytes;
            type State = $state;
            #[inline(always)]
            unsafe fn state($p: *const u8, $out: *mut $state) {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe {
                    $make;
                }
            }
            #[inline(always)]
            unsafe fn w32($q: *const u8, $s: &$state, $j: usize) -> [V; 2] {
                // SAFETY: the caller keeps the conditions of the trait.
                unsafe { $weights }
            }
        }
    };
}

blocks_of_256!(
    Q2K,
    84,
    Groups<16>,
    |p, out| {
        let (d, dmin) = (DOWN * half_at(p.add(80)), half_at(p.add(82)));
        for i in 0..2 {
            let (nibbles, mask) = (p.add(8 * i).cast::<u64>().read_unaligned(), 0x0f0f_0f0f_0f0f_0f0f);
            put(&raw mut (*out).scales, i, eight(d, nibbles & mask));
            put(&raw mut (*out).minima, i, eight(dmin, nibbles >> 4 & mask));
        }
    },
    |p, s, j| {
        let [first, second] = weights(two_bits(p.add(16), j), s.scales[2 * j], s.scales[2 * j + 1]);
        [Avx2::sub(first, Avx2::splat(s.minima[2 * j])), Avx2::sub(second, Avx2::splat(s.minima[2 * j + 1]))]
    }
);

blocks_of_256!(
    Q3K,
    110,
    [f32; 16],
    |p, out| {
        let (d, low, high) = (DOWN * half_at(p.add(108)), p.add(96).cast::<u64>(), p.add(104).cast::<u32>());
        let (low, high) = (low.read_unaligned(), u64::from(high.read_unaligned()));
        // the two high bits of four scales, one scale per byte: the lowest bits belong to scales 0 to 3, and so on
        let tops = |shift: u32| high >> shift & 0x0303_0303;
        for (i, shift) in [(0, 0), (1, 4)] {
            let codes = low >> shift & 0x0f0f_0f0f_0f0f_0f0f | (tops(shift) | tops(shift + 2) << 32) << 4;
            let signed = _mm_sub_epi8(_mm_cvtsi64_si128(codes as i64), _mm_set1_epi8(32));
            put(out, i, eight(d, _mm_cvtsi128_si64(signed) as u64));
        }
    },
    |p, s, j| {
        // a clear third bit subtracts four
        let ([a, b], [c, d]) = (two_bits(p.add(32), j), where_bit(p, j, 4));
        let code = |low, third| _mm256_sub_epi8(_mm256_add_epi8(low, third), _mm256_set1_epi8(4));
        weights([code(a, c), code(b, d)], s[2 * j], s[2 * j + 1])
    }
);

/// The scales and minima of Q4_K and Q5_K, six bits each.
///
/// # Safety
/// `p` is valid for 16 bytes, `out` is valid for a write, and the processor has AVX2 and F16C.
#[inline(always)]
unsafe fn six_bits(p: *const u8, out: *mut Groups<8>) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let [s, m, rest] = [p.add(4), p.add(8), p.add(12)].map(|p| p.cast::<u32>().read_unaligned());
        let whole = |low: u32, rest: u32| u64::from(low & 0x3f3f_3f3f) | u64::from(rest & 0x0f0f_0f0f | low >> 2 & 0x3030_3030) << 32;
        put(&raw mut (*out).scales, 0, eight(DOWN * half_at(p), whole(s, rest)));
        put(&raw mut (*out).minima, 0, eight(half_at(p.add(2)), whole(m, rest >> 4)));
    }
}

/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn subtracted(codes: [__m256i; 2], s: &Groups<8>, j: usize) -> [V; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let minimum = Avx2::splat(s.minima[j]);
        weights(codes, s.scales[j], s.scales[j]).map(|w| Avx2::sub(w, minimum))
    }
}

blocks_of_256!(Q4K, 144, Groups<8>, |p, out| six_bits(p, out), |p, s, j| {
    subtracted(some_bits(p.add(16 + 32 * (j / 2)), 4 * (j % 2), 15), s, j)
});

blocks_of_256!(Q5K, 176, Groups<8>, |p, out| six_bits(p, out), |p, s, j| {
    let ([a, b], [c, d]) = (some_bits(p.add(48 + 32 * (j / 2)), 4 * (j % 2), 15), where_bit(p.add(16), j, 16));
    subtracted([_mm256_or_si256(a, c), _mm256_or_si256(b, d)], s, j)
});

blocks_of_256!(
    Q6K,
    210,
    [f32; 16],
    |p, out| {
        let d = DOWN * half_at(p.add(208));
        for i in 0..2 {
            put(out, i, eight(d, p.add(192 + 8 * i).cast::<u64>().read_unaligned()));
        }
    },
    |p, s, j| {
        let (half, quarter) = (j / 4, j % 4);
        let [a, b] = some_bits(p.add(64 * half + 32 * (quarter % 2)), 4 * (quarter / 2), 15);
        let [c, d] = two_bits(p.add(128), j);
        let code = |low, high| _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16::<4>(high)), _mm256_set1_epi8(32));
        weights([code(a, c), code(b, d)], s[2 * j], s[2 * j + 1])
    }
);

blocks_of_256!(
    Iq4Xs,
    136,
    [f32; 8],
    |p, out| {
        let d = DOWN * half_at(p);
        *out = std::array::from_fn(|j| d * f32::from(codebook::iq4_xs_scale(&*p.cast::<[u8; 136]>(), j)));
    },
    |p, s, j| weights(levels(p.add(8 + 16 * j), &codebook::IQ4_LEVELS), s[j], s[j])
);
