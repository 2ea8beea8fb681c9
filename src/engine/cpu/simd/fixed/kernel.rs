//! Computes the products: one row of input with rows of weights, or many rows with weights that are unpacked once.
//!
//! Every slice of an output's columns is one accumulator of 16 lanes. It takes the fixed blocks in order, then goes through one fixed tree
//! of additions. The sums of the slices are added as a tree, too. Both ways add the same integers of the same steps in the same order, so
//! their bits are equal. Only the last slice may end in an incomplete fixed block.

use std::arch::x86_64::*;
use std::mem::{MaybeUninit, offset_of};

use super::super::avx512::Avx512;
use super::super::fixed_block::{Bytes, FIXED_BLOCK, FixedBlock, K_TILE_BLOCKS, STEP, STEPS};
use super::super::linear::{LinearArgs, MAX_K_TILE, PREFETCH, ROW_BLOCK, Span, Sums, add_slices, end_slice, put};
use super::super::{Isa, LANES};
use super::codes::{Codes, V};
use crate::program::slices::MAX_SLICES;

/// The high and the low bytes of a step's integers, both signed.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn signed(x: &Bytes) -> [__m512i; 2] {
    // SAFETY: the caller keeps the conditions above.
    unsafe { [_mm512_load_si512(x.high.as_ptr().cast()), _mm512_load_si512(x.low.as_ptr().cast())] }
}

/// Codes, scales and minima in the form that a product with many rows takes: all steps of a whole fixed block, whose codes are transposed,
/// share the first vector of scales and of starts. Codes with an offset are signed: less 128.
#[derive(Clone, Copy)]
struct Weights {
    codes: [__m512i; STEPS],
    scales: [V; STEPS],
    minima: V,
    /// -128 times the sums of a lane's signed codes: the products with raised high bytes are too large by it.
    starts: [__m512i; STEPS],
}

/// The 16 columns of each lane of transposed codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub unsafe fn lane_groups() -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    // lane 4 · i + k belongs to group i + 4 · k of 16 columns
    unsafe { _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15) }
}

/// The scale of each lane of transposed codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn whole_scales<D: Codes>(scales: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let index = lane_groups();
        _mm512_permutexvar_ps(if D::GROUP == 16 { index } else { _mm512_srli_epi32::<1>(index) }, scales)
    }
}

/// The 16 columns of each lane of step `j`.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
pub unsafe fn step_groups(j: usize) -> __m512i {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let index = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        _mm512_add_epi32(index, _mm512_set1_epi32(4 * j as i32))
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
        let index = step_groups(j);
        _mm512_permutexvar_ps(if D::GROUP == 16 { index } else { _mm512_srli_epi32::<1>(index) }, scales)
    }
}

/// Adds the products of a fixed block's minima.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn add_minima<D: Codes>(x: &FixedBlock, minima: V, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if !D::MINIMA {
            return acc;
        }
        let sums = if D::GROUP == 16 { &x.sixteens } else { &x.thirty_twos };
        _mm512_fnmadd_ps(minima, _mm512_load_ps(sums.as_ptr()), acc)
    }
}

/// Adds sums of integers.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn add(sums: __m512i, scales: V, units: V, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales), units, acc) }
}

/// Adds sums of fractions.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn add_fractions(sums: __m512i, scales: V, units: V, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe { add(sums, scales, _mm512_mul_ps(units, _mm512_set1_ps(1.0 / 256.0)), acc) }
}

/// Adds the products of some steps, whose codes are as a type gives them: all steps of a whole fixed block, or one of an incomplete one.
/// `first`: the first step, whose units and offsets count for all.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn add_steps<D: Codes, const COUNT: usize>(codes: &[__m512i; COUNT], scales: V, x: &FixedBlock, first: usize, acc: V) -> V {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let load = |from: &[i32; 16]| _mm512_load_si512(from.as_ptr().cast());
        let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
        for (codes, bytes) in codes.iter().zip(&x.steps[first..]) {
            let signed = signed(bytes);
            (high, low) = (_mm512_dpbusd_epi32(high, *codes, signed[0]), _mm512_dpbusd_epi32(low, *codes, signed[1]));
        }
        let mut sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
        if !D::MINIMA {
            sum = _mm512_sub_epi32(sum, load(&x.offsets[first]));
        }
        let units = _mm512_load_ps(x.units[first].as_ptr());
        let acc = add(sum, scales, units, acc);
        if !x.has_fractions {
            return acc;
        }
        let mut sum = _mm512_setzero_si512();
        for (codes, bytes) in codes.iter().zip(&x.fractions[first..]) {
            sum = _mm512_dpbusd_epi32(sum, *codes, _mm512_load_si512(bytes.as_ptr().cast()));
        }
        if !D::MINIMA {
            sum = _mm512_sub_epi32(sum, load(&x.fraction_offsets[first]));
        }
        add_fractions(sum, scales, units, acc)
    }
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
            acc[r] = add_steps::<D, STEPS>(&D::whole(w[r], state), whole_scales::<D>(D::scales(state)), x, 0, acc[r]);
            acc[r] = add_minima::<D>(x, D::minima(state), acc[r]);
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
        let (scales, mut acc) = (D::scales(state), acc);
        for j in 0..len.div_ceil(STEP) {
            acc = add_steps::<D, 1>(&[rest_codes::<D>(w, state, len, j, &mut room)], step_scales::<D>(scales, j), x, j, acc);
        }
        add_minima::<D>(x, D::minima(state), acc)
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

/// Makes codes with an offset signed. Returns their start: -128 times the sums of a lane's codes.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn sign<D: Codes>(codes: &mut [__m512i]) -> __m512i {
    // SAFETY: the caller keeps the condition above.
    unsafe {
        let mut sums = _mm512_setzero_si512();
        if !D::MINIMA {
            for code in codes {
                *code = _mm512_xor_si512(*code, _mm512_set1_epi8(-128));
                sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), *code);
            }
        }
        _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32::<7>(sums))
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
            out.starts[0] = sign::<D>(&mut out.codes);
            return;
        }
        let mut room = [0; STEP_BYTES];
        for j in 0..len.div_ceil(STEP) {
            out.codes[j] = rest_codes::<D>(w, state, len, j, &mut room);
            out.starts[j] = sign::<D>(&mut out.codes[j..=j]);
            out.scales[j] = step_scales::<D>(D::scales(state), j);
        }
    }
}

/// Adds the products of some steps to the accumulators: R rows of weights, `K_TILE_BLOCKS` apart, with T rows of input, `ldf` apart.
/// `first`: the first step, whose scales, units and starts count for all. `FRACTIONS`: whether an input may have fractions.
///
/// # Safety
/// `w` is valid for `R` weights that are `K_TILE_BLOCKS` apart and unpacked for these steps, `x` for `T` fixed blocks, and the processor
/// has the instruction set.
#[inline(always)]
unsafe fn steps<D: Codes, const R: usize, const T: usize, const COUNT: usize, const FRACTIONS: bool>(
    w: *const Weights,
    (x, ldf): (*const FixedBlock, usize),
    first: usize,
    acc: &mut [[V; R]; T],
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let (w, x) = (|r: usize| &*w.add(r * K_TILE_BLOCKS), |t: usize| &*x.add(t * ldf));
        let mut sums = [[_mm512_setzero_si512(); R]; T];
        if !D::MINIMA {
            sums = [std::array::from_fn(|r| w(r).starts[first]); T];
        }
        for is_low in [false, true] {
            for j in first..first + COUNT {
                for t in 0..T {
                    let Bytes { high, low, raised } = &x(t).steps[j];
                    let high = if D::MINIMA { high.as_ptr().cast() } else { raised.as_ptr() };
                    let bytes = _mm512_load_si512(if is_low { low.as_ptr() } else { high }.cast());
                    for r in 0..R {
                        let codes = w(r).codes[j];
                        // the first factor is unsigned, the second one signed
                        let (unsigned, signed) = if D::MINIMA { (codes, bytes) } else { (bytes, codes) };
                        sums[t][r] = _mm512_dpbusd_epi32(sums[t][r], unsigned, signed);
                    }
                }
            }
            if !is_low {
                sums.as_flattened_mut().iter_mut().for_each(|sum| *sum = _mm512_slli_epi32::<8>(*sum));
            }
        }
        for t in 0..T {
            let units = _mm512_load_ps(x(t).units[first].as_ptr());
            for r in 0..R {
                acc[t][r] = add(sums[t][r], w(r).scales[first], units, acc[t][r]);
            }
            if !FRACTIONS || !x(t).has_fractions {
                continue;
            }
            for r in 0..R {
                let mut sum = if D::MINIMA { _mm512_setzero_si512() } else { w(r).starts[first] };
                for j in first..first + COUNT {
                    let (codes, bytes) = (w(r).codes[j], _mm512_load_si512(x(t).fractions[j].as_ptr().cast()));
                    let raised = _mm512_xor_si512(bytes, _mm512_set1_epi8(-128));
                    let (unsigned, signed) = if D::MINIMA { (codes, bytes) } else { (raised, codes) };
                    sum = _mm512_dpbusd_epi32(sum, unsigned, signed);
                }
                acc[t][r] = add_fractions(sum, w(r).scales[first], units, acc[t][r]);
            }
        }
    }
}

/// Adds the products of a fixed block of `len` columns to the accumulators.
///
/// # Safety
/// The conditions of [`steps`], for all steps of `len` columns.
#[inline(always)]
unsafe fn micro<D: Codes, const R: usize, const T: usize, const FRACTIONS: bool>(
    w: *const Weights,
    (x, ldf): (*const FixedBlock, usize),
    len: usize,
    acc: &mut [[V; R]; T],
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        if D::BLOCK < FIXED_BLOCK && len < FIXED_BLOCK {
            for j in 0..len.div_ceil(STEP) {
                steps::<D, R, T, 1, FRACTIONS>(w, (x, ldf), j, acc);
            }
        } else {
            steps::<D, R, T, STEPS, FRACTIONS>(w, (x, ldf), 0, acc);
        }
        for t in 0..T {
            for r in 0..R {
                acc[t][r] = add_minima::<D>(&*x.add(t * ldf), (*w.add(r * K_TILE_BLOCKS)).minima, acc[t][r]);
            }
        }
    }
}

/// Multiplies R rows of weights × T rows of input over one K tile.
///
/// # Safety
/// The pointers are valid for the tile that `a` and `span` describe, `sums.partial` is aligned to a cache line, and the processor has the
/// instruction set.
#[inline(always)]
unsafe fn tile<D: Codes, const R: usize, const T: usize>(
    w: *const Weights,
    x: *const FixedBlock,
    a: &LinearArgs,
    span: &Span,
    sums: &Sums,
    out: *mut f32,
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let partial = |t: usize, r: usize| sums.partial.add((t * R + r) * LANES);
        let mut acc = [[_mm512_setzero_ps(); R]; T];
        if !span.first {
            for t in 0..T {
                for r in 0..R {
                    acc[t][r] = _mm512_load_ps(partial(t, r));
                }
            }
        }
        // a loop without fractions runs faster by a sixth, and few inputs have them
        let has_fractions = (0..T).any(|t| (*x.add(t * a.ldf)).tile_has_fractions);
        for i in 0..span.len.div_ceil(FIXED_BLOCK) {
            let (w, x, len) = (w.add(i), (x.add(i), a.ldf), span.len - i * FIXED_BLOCK);
            if has_fractions { micro::<D, R, T, true>(w, x, len, &mut acc) } else { micro::<D, R, T, false>(w, x, len, &mut acc) }
        }
        for t in 0..T {
            if span.last {
                let mut sum = [0f32; R];
                Avx512::reduce_each(&acc[t], &mut sum);
                end_slice(a, (span.slice, T), sum.map(|sum| a.scale * sum), sums.subtrees.add(R * t), out.add(t * a.ldo));
            } else {
                for r in 0..R {
                    _mm512_store_ps(partial(t, r), acc[t][r]);
                }
            }
        }
    }
}

/// Multiplies a K tile of unpacked weights with the rows of input from `t` on, `T` at a time as long as there are so many. Returns the
/// first row that is left.
///
/// # Safety
/// The conditions of [`linear`]. `weights` are unpacked for the tile, `partials` and `subtrees` are those of [`many`].
#[inline(always)]
unsafe fn tiles<D: Codes, const T: usize>(
    a: &LinearArgs,
    mut t: usize,
    (weights, k): (*const Weights, usize),
    span: &Span,
    (partials, subtrees): (*mut f32, *mut f32),
) -> usize {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        while t + T <= a.tokens {
            let x = a.fixed.add(t * a.ldf + k / FIXED_BLOCK);
            let mut r = 0;
            while r < a.rows {
                let at = t * ROW_BLOCK + r * T;
                let sums = Sums { partial: partials.add(at * LANES), subtrees: subtrees.add(at * MAX_SLICES) };
                let (weights, out) = (weights.add(r * K_TILE_BLOCKS), a.out.add(t * a.ldo + r));
                if r + 4 <= a.rows {
                    for next in 0..T {
                        prefetch_step::<D>(x.wrapping_add((T + next) * a.ldf), span.len.div_ceil(FIXED_BLOCK), r / 4);
                    }
                    tile::<D, 4, T>(weights, x, a, span, &sums, out);
                    r += 4;
                } else {
                    tile::<D, 1, T>(weights, x, a, span, &sums, out);
                    r += 1;
                }
            }
            t += T;
        }
        t
    }
}

// a thread's scratch holds a K tile and the accumulators
const _: () = assert!(ROW_BLOCK * K_TILE_BLOCKS * size_of::<Weights>() <= ROW_BLOCK * MAX_K_TILE * size_of::<f32>());

/// Prefetches step `j` of `blocks` fixed blocks of the next rows of input, and their sums with the first step. These lie too far away for
/// the hardware prefetcher.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn prefetch_step<D: Codes>(x: *const FixedBlock, blocks: usize, j: usize) {
    // SAFETY: the caller keeps the condition above, and a prefetch may name any address.
    unsafe {
        let step = x.cast::<u8>().wrapping_add(offset_of!(FixedBlock, steps) + j * size_of::<Bytes>());
        let units = x.cast::<u8>().wrapping_add(offset_of!(FixedBlock, units) + j * size_of::<[f32; 16]>());
        let sums = if D::GROUP == 16 { offset_of!(FixedBlock, sixteens) } else { offset_of!(FixedBlock, thirty_twos) };
        for block in (0..blocks).map(|block| block * size_of::<FixedBlock>()) {
            Avx512::prefetch(step.wrapping_add(block + if D::MINIMA { offset_of!(Bytes, high) } else { offset_of!(Bytes, raised) }));
            Avx512::prefetch(step.wrapping_add(block + offset_of!(Bytes, low)));
            Avx512::prefetch(units.wrapping_add(block));
            if D::MINIMA && j == 0 {
                Avx512::prefetch(x.cast::<u8>().wrapping_add(block + sums));
            }
        }
        if j == 0 {
            Avx512::prefetch(x.cast::<u8>().wrapping_add(offset_of!(FixedBlock, tile_has_fractions)));
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
        let partials = a.scratch.add(ROW_BLOCK * K_TILE_BLOCKS * size_of::<Weights>() / 4); // [tokens, ROW_BLOCK, LANES]
        let subtrees = partials.add(ROW_BLOCK * a.tokens * LANES); // [tokens, ROW_BLOCK, MAX_SLICES]
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
                let span = Span { len, slice, first: k == start, last: k + len == end };
                let t = tiles::<D, 2>(a, 0, (weights, k), &span, (partials, subtrees));
                tiles::<D, 1>(a, t, (weights, k), &span, (partials, subtrees));
                k += len;
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
