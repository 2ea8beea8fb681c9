//! Splits inputs into fixed point.

use std::arch::x86_64::*;

use super::super::fixed_block::{FIXED_BLOCK, FixedBlock, K_TILE_BLOCKS, STEPS};
use super::codes::transposed;
use super::kernel;

/// The largest magnitude of an integer: 127 · 256 + 127, of two signed bytes.
const LIMIT: f32 = 32639.0;

/// The smallest magnitude that fills an integer: 2^-100. Smaller inputs have fewer bits, so that no factor underflows.
const LEAST: f32 = f32::from_bits(27 << 23);

/// How many times larger than usual an input may be without fractions: its neighbours have five bits less than the others then.
const OUTLIER: f32 = 32.0;

/// Splits a row of `len` floats into fixed blocks. `len` is a multiple of 32.
///
/// # Safety
/// `x` holds `len` floats, `out` has room for `len / FIXED_BLOCK` fixed blocks, rounded up, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn split(x: *const f32, len: usize, out: *mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let out = std::slice::from_raw_parts_mut(out, len.div_ceil(FIXED_BLOCK));
        for (i, block) in out.iter_mut().enumerate() {
            split_block(x.add(i * FIXED_BLOCK), FIXED_BLOCK.min(len - i * FIXED_BLOCK), block);
        }
        for i in 0..out.len() {
            out[i].tile_has_fractions = out[i..].iter().take(K_TILE_BLOCKS).any(|block| block.has_fractions);
        }
    }
}

/// The largest number of each vector, by lane of a whole fixed block.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn largest(v: &[__m512i; 16]) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // four levels of a tree: 8, 4, 2 and 1 numbers of each vector are left
        let mut eights = [_mm512_setzero_si512(); 8];
        for (i, out) in eights.iter_mut().enumerate() {
            let (a, b) = (v[2 * i], v[2 * i + 1]);
            *out = _mm512_max_epu32(_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
        }
        let mut fours = [_mm512_setzero_ps(); 4];
        for (i, out) in fours.iter_mut().enumerate() {
            let (a, b) = (eights[2 * i], eights[2 * i + 1]);
            let max = _mm512_max_epu32(_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            *out = _mm512_castsi512_ps(max);
        }
        let max = |a, b| _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
        let two = |a, b| max(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b));
        let (a, b) = (two(fours[0], fours[1]), two(fours[2], fours[3]));
        _mm512_castps_si512(max(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b)))
    }
}

/// Narrows numbers to bytes, from vectors with four numbers of each 16 columns per 128-bit lane, to ascending order of columns.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn in_bytes(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller keeps the condition above.
    unsafe { _mm512_permutexvar_epi32(kernel::lane_groups(), _mm512_packs_epi16(a, b)) }
}

/// The bytes of a step's integers, in ascending order of columns: high, low and raised ones.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn bytes_of(n: &[__m512i; 4]) -> [__m512i; 3] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // in each 128-bit lane, four numbers of each of two vectors
        let (a, b) = (_mm512_packs_epi32(n[0], n[1]), _mm512_packs_epi32(n[2], n[3]));
        // a signed low byte carries into the high one
        let high = |n| _mm512_srai_epi16::<8>(_mm512_add_epi16(n, _mm512_set1_epi16(128)));
        let low = |n| _mm512_and_si512(n, _mm512_set1_epi16(255));
        let above = |n| _mm512_srai_epi16::<8>(n);
        let low = _mm512_permutexvar_epi32(kernel::lane_groups(), _mm512_packus_epi16(low(a), low(b)));
        [in_bytes(high(a), high(b)), low, _mm512_xor_si512(in_bytes(above(a), above(b)), _mm512_set1_epi8(-128))]
    }
}

/// The bytes of all steps' integers, and their fractions, in ascending order of columns. The fractions are zeros without `has_fractions`.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn integers(inputs: &[__m512; 16], inverses: &[f32; 16], has_fractions: bool) -> ([[__m512i; STEPS]; 3], [__m512i; STEPS]) {
    // SAFETY: the caller keeps the condition above.
    unsafe {
        let (mut bytes, mut fractions) = ([[_mm512_setzero_si512(); STEPS]; 3], [_mm512_setzero_si512(); STEPS]);
        for j in 0..STEPS {
            let (mut rounded, mut rests) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
            for i in 0..4 {
                let (x, inverse) = (inputs[4 * j + i], _mm512_set1_ps(inverses[4 * j + i]));
                rounded[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                if has_fractions {
                    let rest = _mm512_fmsub_ps(x, inverse, _mm512_cvtepi32_ps(rounded[i]));
                    rests[i] = _mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(256.0)));
                }
            }
            let of_step = bytes_of(&rounded);
            for which in 0..3 {
                bytes[which][j] = of_step[which];
            }
            fractions[j] = in_bytes(_mm512_packs_epi32(rests[0], rests[1]), _mm512_packs_epi32(rests[2], rests[3]));
        }
        (bytes, fractions)
    }
}

/// Sums the signed bytes of each lane.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn byte_sums(bytes: &[__m512i]) -> __m512i {
    // SAFETY: the caller keeps the condition above.
    unsafe { bytes.iter().fold(_mm512_setzero_si512(), |sums, bytes| _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), *bytes)) }
}

/// Sums the integers of each lane, of which these are the high and the low bytes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn integer_sums(high: &[__m512i], low: &[__m512i]) -> __m512i {
    // SAFETY: the caller keeps the condition above.
    unsafe { _mm512_add_epi32(_mm512_slli_epi32::<8>(byte_sums(high)), byte_sums(low)) }
}

/// # Safety
/// `x` is valid for `len` floats, a multiple of 32 and at most `FIXED_BLOCK`, and the processor has the instruction set.
#[inline(always)]
unsafe fn split_block(x: *const f32, len: usize, out: &mut FixedBlock) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (mut inputs, mut magnitudes) = ([_mm512_setzero_ps(); 16], [_mm512_setzero_si512(); 16]);
        for i in 0..16 {
            if 16 * i < len {
                inputs[i] = _mm512_loadu_ps(x.add(16 * i));
            }
            // magnitudes compared as integers keep their order, and a NaN is above all of them
            magnitudes[i] = _mm512_and_si512(_mm512_castps_si512(inputs[i]), _mm512_set1_epi32(i32::MAX));
        }
        let (bits, limit) = (largest(&magnitudes), _mm512_set1_ps(LIMIT));
        let magnitudes = _mm512_max_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(LEAST));
        // a NaN or an infinity makes every product NaN
        let is_finite = _mm512_cmplt_epu32_mask(bits, _mm512_set1_epi32(f32::INFINITY.to_bits() as i32));
        let units = _mm512_mask_div_ps(_mm512_set1_ps(f32::NAN), is_finite, magnitudes, limit);
        let mut inverses = [0f32; 16];
        let by_group = |lanes| _mm512_permutexvar_ps(kernel::lane_groups(), lanes);
        let inverse = _mm512_div_ps(limit, magnitudes);
        _mm512_storeu_ps(inverses.as_mut_ptr(), by_group(inverse));
        // the harmonic mean of the groups' largest inputs, which no outlier raises much; groups of zeros do not count
        let counted = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(magnitudes, _mm512_set1_ps(LEAST));
        let usual = counted.count_ones() as f32 * LIMIT / _mm512_mask_reduce_add_ps(counted, inverse);
        out.has_fractions = _mm512_reduce_max_ps(magnitudes) > OUTLIER * usual;

        let (mut bytes, mut fractions) = integers(&inputs, &inverses, out.has_fractions);
        let whole = bytes.map(|bytes| transposed(bytes));
        let whole_fractions = transposed(fractions);
        let (sums, fraction_sums) = (integer_sums(&whole[0], &whole[1]), byte_sums(&whole_fractions));
        let total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(fraction_sums), _mm512_set1_ps(1.0 / 256.0), _mm512_cvtepi32_ps(sums));
        let sixteens = by_group(_mm512_mul_ps(total, units));
        _mm512_store_ps(out.sixteens.as_mut_ptr(), sixteens);
        let next = _mm512_shuffle_ps::<0xf5>(sixteens, sixteens);
        _mm512_store_ps(out.thirty_twos.as_mut_ptr(), _mm512_maskz_compress_ps(0x5555, _mm512_add_ps(sixteens, next)));

        let put = |to: &mut [i32; 16], sums| _mm512_store_si512(to.as_mut_ptr().cast(), _mm512_slli_epi32::<7>(sums));
        if len == FIXED_BLOCK {
            (bytes, fractions) = (whole, whole_fractions);
            _mm512_store_ps(out.units[0].as_mut_ptr(), units);
            put(&mut out.offsets[0], sums);
            put(&mut out.fraction_offsets[0], fraction_sums);
        }
        for j in 0..STEPS {
            let to = &mut out.steps[j];
            _mm512_store_si512(to.high.as_mut_ptr().cast(), bytes[0][j]);
            _mm512_store_si512(to.low.as_mut_ptr().cast(), bytes[1][j]);
            _mm512_store_si512(to.raised.as_mut_ptr().cast(), bytes[2][j]);
            _mm512_store_si512(out.fractions[j].as_mut_ptr().cast(), fractions[j]);
            if len < FIXED_BLOCK {
                _mm512_store_ps(out.units[j].as_mut_ptr(), _mm512_permutexvar_ps(kernel::step_groups(j), by_group(units)));
                put(&mut out.offsets[j], integer_sums(&[bytes[0][j]], &[bytes[1][j]]));
                put(&mut out.fraction_offsets[j], byte_sums(&[fractions[j]]));
            }
        }
    }
}
