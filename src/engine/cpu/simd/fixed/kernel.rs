//! Computes the products: one row of input with rows of weights, or many rows with weights that are unpacked once.
//!
//! Every slice of an output's columns is one accumulator of 16 lanes. It takes the fixed blocks in order, then goes through one fixed tree
//! of additions. The sums of the slices are added as a tree, too. Both ways use `begin`, `whole`, `step` and `end` for a fixed block, so
//! their bits are equal. Only the last slice may end in an incomplete fixed block.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::super::avx512::Avx512;
use super::super::fixed_block::{FIXED_BLOCK, FixedBlock, PLANES, STEP, STEPS};
use super::super::linear::{LinearArgs, MAX_K_TILE, PREFETCH, ROW_BLOCK, add_slices, put};
use super::super::{Isa, LANES};
use super::codes::{Codes, V};
use crate::program::slices::MAX_SLICES;

/// Fixed blocks that are unpacked at a time for many rows of input. Few enough that a block of weights stays in L1.
const K_TILE_BLOCKS: usize = 2;

/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub unsafe fn planes(x: &FixedBlock, j: usize) -> [__m512i; PLANES] {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let p = x.planes[j].as_ptr().cast::<__m512i>();
        [_mm512_load_si512(p), _mm512_load_si512(p.add(1)), _mm512_load_si512(p.add(2))]
    }
}

/// Multiplies codes with integers and sums four neighbouring products per lane.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub unsafe fn dot(codes: __m512i, planes: &[__m512i; PLANES]) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let upper = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, planes[0]);
        let both = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(upper), codes, planes[1]);
        _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(both), codes, planes[2])
    }
}

/// Codes, scales and minima in the form that a product takes. For a whole fixed block, the codes are transposed and there is one vector of
/// scales.
#[derive(Clone, Copy)]
struct Weights {
    codes: [__m512i; STEPS],
    scales: [V; STEPS],
    minima: V,
}

/// The scale of each lane of transposed codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn whole_scales<D: Codes>(scales: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // lane 4 · i + k belongs to group i + 4 · k of 16 columns
        let index = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_ps(if D::GROUP == 16 { index } else { _mm512_srli_epi32::<1>(index) }, scales)
    }
}

/// The scale of each lane of step `j`.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn step_scales<D: Codes>(scales: V, j: usize) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let index = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        let index = _mm512_add_epi32(index, _mm512_set1_epi32(4 * j as i32));
        _mm512_permutexvar_ps(if D::GROUP == 16 { index } else { _mm512_srli_epi32::<1>(index) }, scales)
    }
}

/// Starts the lanes of a fixed block with its minima.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn begin<D: Codes>(x: &FixedBlock, minima: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if !D::MINIMA {
            return _mm512_setzero_ps();
        }
        let sums = if D::GROUP == 16 { &x.sixteens } else { &x.thirty_twos };
        _mm512_fnmadd_ps(minima, _mm512_load_ps(sums.as_ptr()), _mm512_setzero_ps())
    }
}

/// `OFFSET` times sums of integers.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn offsets<D: Codes>(sums: &[i32; 16]) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_sll_epi32(_mm512_load_si512(sums.as_ptr().cast()), _mm_cvtsi32_si128(D::OFFSET.trailing_zeros() as i32)) }
}

/// Adds a whole fixed block. `sums` holds the sums with each plane.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn whole<D: Codes>(sums: [__m512i; PLANES], scales: V, x: &FixedBlock, lanes: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut upper = _mm512_add_epi32(_mm512_slli_epi32::<8>(sums[0]), sums[1]);
        let mut lower = sums[2];
        if D::OFFSET != 0 {
            upper = _mm512_sub_epi32(upper, offsets::<D>(&x.upper));
            lower = _mm512_sub_epi32(lower, offsets::<D>(&x.lower));
        }
        let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0), _mm512_cvtepi32_ps(lower));
        _mm512_fmadd_ps(sum, scales, lanes)
    }
}

/// Adds one step of an incomplete fixed block.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn step<D: Codes>(codes: __m512i, scales: V, x: &FixedBlock, j: usize, lanes: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut sum = dot(codes, &planes(x, j));
        if D::OFFSET != 0 {
            sum = _mm512_sub_epi32(sum, offsets::<D>(&x.fours[j]));
        }
        _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, lanes)
    }
}

/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn end(lanes: V, x: &FixedBlock, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_fmadd_ps(lanes, _mm512_set1_ps(x.unit), acc) }
}

/// Adds a whole fixed block for R rows of weights.
///
/// # Safety
/// The pointers in `w` are valid for `FIXED_BLOCK` weights, and the processor has the instruction set.
#[inline(always)]
unsafe fn fixed_block<D: Codes, const R: usize>(w: &[*const u8; R], x: &FixedBlock, acc: &mut [V; R]) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        // all states come first, because a store takes a while until it can be loaded
        let mut states = [const { MaybeUninit::<D::State>::uninit() }; R];
        for r in 0..R {
            D::state(w[r], FIXED_BLOCK / D::BLOCK, states[r].as_mut_ptr());
        }
        for r in 0..R {
            let state = states[r].assume_init_ref();
            let codes = D::whole(w[r], state);
            let mut sums = [_mm512_setzero_si512(); PLANES];
            for j in 0..STEPS {
                let planes = planes(x, j);
                for i in 0..PLANES {
                    sums[i] = _mm512_dpbusd_epi32(sums[i], codes[j], planes[i]);
                }
            }
            let lanes = whole::<D>(sums, whole_scales::<D>(D::scales(state)), x, begin::<D>(x, D::minima(state)));
            acc[r] = end(lanes, x, acc[r]);
        }
    }
}

/// Adds the last `len` columns of a row, less than a fixed block.
///
/// # Safety
/// `w` is valid for `len` weights, which are whole blocks and fewer than `FIXED_BLOCK`, and the processor has the instruction set.
#[inline(always)]
unsafe fn rest<D: Codes>(w: *const u8, len: usize, x: &FixedBlock, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut room = [0; STEP_BYTES];
        let mut state = MaybeUninit::<D::State>::uninit();
        D::state(w, len / D::BLOCK, state.as_mut_ptr());
        let state = state.assume_init_ref();
        let (scales, mut lanes) = (D::scales(state), begin::<D>(x, D::minima(state)));
        for j in 0..len.div_ceil(STEP) {
            lanes = step::<D>(rest_codes::<D>(w, state, len, j, &mut room), step_scales::<D>(scales, j), x, j, lanes);
        }
        end(lanes, x, acc)
    }
}

/// The most bytes of a step's blocks: two blocks of 34 or one of 36.
const STEP_BYTES: usize = 68;

/// The codes of step `j` of the last `len` columns. If only half a step is left, zeros fill the other half.
///
/// # Safety
/// `w` is valid for `len` weights, `state` is theirs, step `j` starts before `len`, and the processor has the instruction set.
#[inline(always)]
unsafe fn rest_codes<D: Codes>(w: *const u8, state: &D::State, len: usize, j: usize, room: &mut [u8; STEP_BYTES]) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if STEP * (j + 1) <= len {
            return D::codes(w, state, j);
        }
        w.add(STEP * j / D::BLOCK * D::BYTES).copy_to_nonoverlapping(room.as_mut_ptr(), D::BYTES);
        D::codes(room.as_ptr(), state, 0)
    }
}

/// Multiplies R rows of weights with one row of input. Weights are decoded in registers.
///
/// # Safety
/// The conditions of [`linear`] for one token, and the rows `row + r * apart` exist.
#[inline(always)]
unsafe fn fused<D: Codes, const R: usize>(a: &LinearArgs, row: usize, apart: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let bytes = FIXED_BLOCK / D::BLOCK * D::BYTES;
        let mut w = [a.w; R];
        for (r, w) in w.iter_mut().enumerate() {
            *w = w.add((row + r * apart) * a.row_bytes);
        }
        let mut sums = [[0f32; R]; MAX_SLICES];
        let (mut x, mut k) = (a.fixed, 0);
        for (&end, sums) in a.slices.ends().iter().zip(&mut sums) {
            let mut acc = [_mm512_setzero_ps(); R];
            while k + FIXED_BLOCK <= end {
                for w in w {
                    for line in (0..bytes).step_by(64) {
                        Avx512::prefetch(w.wrapping_add(line + PREFETCH));
                    }
                }
                fixed_block::<D, R>(&w, &*x, &mut acc);
                for w in &mut w {
                    *w = w.add(bytes);
                }
                (x, k) = (x.add(1), k + FIXED_BLOCK);
            }
            if D::BLOCK < FIXED_BLOCK && k < end {
                for r in 0..R {
                    acc[r] = rest::<D>(w[r], end - k, &*x, acc[r]);
                }
            }
            Avx512::reduce_each(&acc, sums);
        }
        for r in 0..R {
            put(a.out.add(row + r * apart), add_slices(a, |slice| sums[slice][r]), a.accumulate);
        }
    }
}

/// Takes R rows at a time, each from another part of the matrix. Each part is read from end to end, which suits the hardware's prefetcher.
///
/// # Safety
/// The conditions of [`linear`], with one token.
#[inline(always)]
unsafe fn one<D: Codes, const R: usize>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let part = a.rows / R;
        for row in 0..part {
            fused::<D, R>(a, row, part);
        }
        for row in part * R..a.rows {
            fused::<D, 1>(a, row, 0);
        }
    }
}

/// # Safety
/// `w` is valid for `len` weights, which are whole blocks and at most `FIXED_BLOCK`, and the processor has the instruction set.
#[inline(always)]
unsafe fn unpack<D: Codes>(w: *const u8, len: usize, out: &mut Weights) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut state = MaybeUninit::<D::State>::uninit();
        D::state(w, len / D::BLOCK, state.as_mut_ptr());
        let state = state.assume_init_ref();
        out.minima = D::minima(state);
        if D::BLOCK == FIXED_BLOCK || len == FIXED_BLOCK {
            (out.codes, out.scales[0]) = (D::whole(w, state), whole_scales::<D>(D::scales(state)));
            return;
        }
        let mut room = [0; STEP_BYTES];
        for j in 0..len.div_ceil(STEP) {
            out.codes[j] = rest_codes::<D>(w, state, len, j, &mut room);
            out.scales[j] = step_scales::<D>(D::scales(state), j);
        }
    }
}

/// Adds the products of a fixed block to the accumulators: R rows of weights, `K_TILE_BLOCKS` apart, with one row of input.
///
/// # Safety
/// `w` is valid for `R` weights that are `K_TILE_BLOCKS` apart and unpacked for `len` columns, and the processor has the instruction set.
#[inline(always)]
unsafe fn micro<D: Codes, const R: usize>(w: *const Weights, x: &FixedBlock, len: usize, acc: &mut [V; R]) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if D::BLOCK < FIXED_BLOCK && len < FIXED_BLOCK {
            for r in 0..R {
                let w = &*w.add(r * K_TILE_BLOCKS);
                let mut lanes = begin::<D>(x, w.minima);
                for j in 0..len.div_ceil(STEP) {
                    lanes = step::<D>(w.codes[j], w.scales[j], x, j, lanes);
                }
                acc[r] = end(lanes, x, acc[r]);
            }
            return;
        }
        let mut sums = [[_mm512_setzero_si512(); PLANES]; R];
        for j in 0..STEPS {
            let planes = planes(x, j);
            for r in 0..R {
                for i in 0..PLANES {
                    sums[r][i] = _mm512_dpbusd_epi32(sums[r][i], (*w.add(r * K_TILE_BLOCKS)).codes[j], planes[i]);
                }
            }
        }
        for r in 0..R {
            let w = &*w.add(r * K_TILE_BLOCKS);
            acc[r] = end(whole::<D>(sums[r], w.scales[0], x, begin::<D>(x, w.minima)), x, acc[r]);
        }
    }
}

/// Adds a K tile's products of `R` rows of weights to the accumulators at `lanes`.
///
/// # Safety
/// `w` and `x` are valid for `len` columns of `R` rows and of one row, `lanes` is valid for `R` vectors on cache lines, and the processor
/// has the instruction set.
#[inline(always)]
unsafe fn tile<D: Codes, const R: usize>(w: *const Weights, x: *const FixedBlock, len: usize, first: bool, lanes: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); R];
        if !first {
            for r in 0..R {
                acc[r] = _mm512_load_ps(lanes.add(r * LANES));
            }
        }
        for i in 0..len.div_ceil(FIXED_BLOCK) {
            micro::<D, R>(w.add(i), &*x.add(i), len - i * FIXED_BLOCK, &mut acc);
        }
        for r in 0..R {
            _mm512_store_ps(lanes.add(r * LANES), acc[r]);
        }
    }
}

// a thread's scratch holds a K tile and the accumulators
const _: () = assert!(ROW_BLOCK * K_TILE_BLOCKS * size_of::<Weights>() <= ROW_BLOCK * MAX_K_TILE * size_of::<f32>());

/// Prefetches one of four parts of the next row's fixed blocks, which lie too far away for the hardware prefetcher.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn prefetch_part(x: *const FixedBlock, blocks: usize, part: usize) {
    const LINES: usize = size_of::<FixedBlock>() / 64;
    // SAFETY: the caller keeps the condition above, and a prefetch may name any address.
    unsafe {
        for line in (part * LINES / 2..(part + 1) * LINES / 2).take_while(|line| line / LINES < blocks) {
            Avx512::prefetch(x.cast::<u8>().wrapping_add(line * 64));
        }
    }
}

/// Takes many rows of input. A block of rows of weights is unpacked K tile by K tile.
///
/// # Safety
/// The conditions of [`linear`], with at most `ROW_BLOCK` rows.
#[inline(always)]
unsafe fn many<D: Codes>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let weights = a.scratch.cast::<Weights>();
        let lanes = a.scratch.add(ROW_BLOCK * K_TILE_BLOCKS * size_of::<Weights>() / 4); // [tokens, ROW_BLOCK, LANES]
        let sums = lanes.add(ROW_BLOCK * a.tokens * LANES); // [tokens, MAX_SLICES, ROW_BLOCK]
        let mut k = 0;
        for (slice, &end) in a.slices.ends().iter().enumerate() {
            let start = k;
            while k < end {
                let len = (K_TILE_BLOCKS * FIXED_BLOCK).min(end - k);
                for r in 0..a.rows {
                    let row = a.w.add(r * a.row_bytes + k / D::BLOCK * D::BYTES);
                    for i in 0..len.div_ceil(FIXED_BLOCK) {
                        let len = FIXED_BLOCK.min(len - i * FIXED_BLOCK);
                        unpack::<D>(row.add(i * FIXED_BLOCK / D::BLOCK * D::BYTES), len, &mut *weights.add(r * K_TILE_BLOCKS + i));
                    }
                }
                for t in 0..a.tokens {
                    let (x, lanes) = (a.fixed.add(t * a.ldf + k / FIXED_BLOCK), lanes.add(t * ROW_BLOCK * LANES));
                    let mut r = 0;
                    while r + 4 <= a.rows {
                        prefetch_part(x.wrapping_add(a.ldf), len.div_ceil(FIXED_BLOCK), r / 4);
                        tile::<D, 4>(weights.add(r * K_TILE_BLOCKS), x, len, k == start, lanes.add(r * LANES));
                        r += 4;
                    }
                    while r < a.rows {
                        tile::<D, 1>(weights.add(r * K_TILE_BLOCKS), x, len, k == start, lanes.add(r * LANES));
                        r += 1;
                    }
                }
                k += len;
            }
            end_slice(a, slice, lanes, sums);
        }
    }
}

/// Adds up the lanes of a slice, and after the last slice the sums of all slices. A function of its own, once for all types, keeps the
/// products' loops small.
///
/// # Safety
/// The conditions of [`linear`], with at most `ROW_BLOCK` rows. `lanes` holds the slice's accumulators [tokens, `ROW_BLOCK`, `LANES`], and
/// `sums` those of earlier slices [tokens, `MAX_SLICES`, `ROW_BLOCK`].
#[target_feature(enable = "avx512f")]
#[inline(never)]
unsafe fn end_slice(a: &LinearArgs, slice: usize, lanes: *const f32, sums: *mut f32) {
    for t in 0..a.tokens {
        // SAFETY: the caller keeps the conditions above.
        unsafe {
            let lanes = std::slice::from_raw_parts(lanes.cast::<V>().add(t * ROW_BLOCK), a.rows);
            let sums = std::slice::from_raw_parts_mut(sums.add(t * ROW_BLOCK * MAX_SLICES), ROW_BLOCK * MAX_SLICES);
            Avx512::reduce_each(lanes, &mut sums[slice * ROW_BLOCK..][..a.rows]);
            if slice + 1 == a.slices.ends().len() {
                for r in 0..a.rows {
                    put(a.out.add(t * a.ldo + r), add_slices(a, |slice| sums[slice * ROW_BLOCK + r]), a.accumulate);
                }
            }
        }
    }
}

/// Multiplies rows of weights with all rows of input.
///
/// # Safety
/// The pointers of `a` are valid for the sizes that its fields give, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn linear<D: Codes>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        match a.tokens {
            0 => {}
            1 => one::<D, 4>(a),
            _ => {
                for row in (0..a.rows).step_by(ROW_BLOCK) {
                    let rows = ROW_BLOCK.min(a.rows - row);
                    many::<D>(&LinearArgs { w: a.w.add(row * a.row_bytes), rows, out: a.out.add(row), ..*a });
                }
            }
        }
    }
}
