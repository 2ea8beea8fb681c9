//! Computes quantised linear layers: rows of weights times 1 … n tokens.
//!
//! Every slice of an output's columns (`program/slices.rs`) is one accumulator of 16 lanes. It takes the columns in ascending order, then
//! goes through one fixed tree of additions. The sums of the slices are added as a tree, too. The number of tokens, the tiles and the
//! threads do not change that order. This makes the logits invariant, and lets shards share a sum.

use std::mem::MaybeUninit;

use super::fixed_block::{FixedBlock, SplitFn};
use super::{Dequant, Isa};
use crate::program::slices::{MAX_SLICES, Slices, tree};

/// The most columns that are dequantised at a time for many tokens.
pub const MAX_K_TILE: usize = 2048;
/// Rows per task for many tokens.
pub const ROW_BLOCK: usize = 16;
/// The distance, in bytes, at which a row's blocks are prefetched: farther than the hardware prefetches by itself, but within L1.
pub(super) const PREFETCH: usize = 2048;
/// The most tokens per micro-tile.
pub const MAX_TILE: usize = 6;
/// The smallest number of tokens for which weights are dequantised into a buffer.
pub const GEMM_FROM: usize = 5;

/// A block of rows times all tokens: out[t * ldo + r] = scale · Σ_k w[r, k] · x[t * ldx + k], added to out[t * ldo + r] if `accumulate` is
/// set.
#[derive(Clone, Copy)]
pub struct LinearArgs {
    pub w: *const u8,
    pub row_bytes: usize,
    pub rows: usize,
    /// A multiple of the type's block and of 32.
    pub cols: usize,
    /// The slices of the columns, whose ends are multiples of the type's block, and of a fixed block for kernels that take fixed point.
    pub slices: Slices,
    pub x: *const f32,
    pub ldx: usize,
    /// The same rows in fixed point, for kernels that take fixed point.
    pub fixed: *const FixedBlock,
    /// Fixed blocks per row.
    pub ldf: usize,
    pub tokens: usize,
    pub out: *mut f32,
    pub ldo: usize,
    pub scale: f32,
    pub accumulate: bool,
    /// Scratch space of at least `scratch_len(tokens)` floats that no other thread uses.
    pub scratch: *mut f32,
    pub micro: &'static MicroTable,
}

/// Micro-kernels of 4 rows × 1 … `MAX_TILE` tokens. `tile` is the most tokens whose accumulators stay in registers.
pub struct MicroTable {
    pub by_tokens: [MicroFn; MAX_TILE],
    pub tile: usize,
}

/// (weights, tokens, arguments, span of columns, sums so far, outputs)
pub type MicroFn = unsafe fn(*const f32, *const f32, &LinearArgs, &Span, &Sums, *mut f32);

pub type LinearFn = unsafe fn(&LinearArgs);

/// The linear layer of a tensor type.
#[derive(Clone, Copy)]
pub struct Kernel {
    pub run: LinearFn,
    /// The function that converts a row of input to fixed point, for kernels that take fixed point.
    pub split: Option<SplitFn>,
}

/// The floats of scratch that a thread needs.
pub fn scratch_len(tokens: usize) -> usize {
    ROW_BLOCK * MAX_K_TILE + ROW_BLOCK * (tokens + MAX_TILE) * (super::LANES + MAX_SLICES)
}

/// # Safety
/// `out` is valid for a read and a write.
#[inline(always)]
pub(super) unsafe fn put(out: *mut f32, value: f32, accumulate: bool) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        *out = if accumulate { *out + value } else { value };
    }
}

/// Multiplies R rows × T tokens. Weights are dequantised in registers.
///
/// # Safety
/// The conditions of [`linear`], and the rows `row + r * apart` and the tokens `token..token + T` exist.
#[inline(always)]
unsafe fn fused<I: Isa, D: Dequant<I>, const R: usize, const T: usize>(a: &LinearArgs, row: usize, apart: usize, token: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut w = [std::ptr::null::<u8>(); R];
        for (r, w) in w.iter_mut().enumerate() {
            *w = a.w.add((row + r * apart) * a.row_bytes);
        }
        let mut x = [std::ptr::null::<f32>(); T];
        for (t, x) in x.iter_mut().enumerate() {
            *x = a.x.add((token + t) * a.ldx);
        }
        let mut sums = [[[0f32; T]; R]; MAX_SLICES];
        let mut k = 0;
        for (&end, sums) in a.slices.ends().iter().zip(&mut sums) {
            let mut acc = [[I::zero(); T]; R];
            while k < end {
                let mut states = [const { MaybeUninit::<D::State>::uninit() }; R];
                for r in 0..R {
                    for line in (0..D::BYTES).step_by(64) {
                        I::prefetch(w[r].wrapping_add(line + PREFETCH));
                    }
                    D::state(w[r], states[r].as_mut_ptr());
                }
                let mut first = 0;
                while first < D::BLOCK / 32 {
                    // rows alternate, so that their chains of additions overlap
                    for r in 0..R {
                        for j in first..first + D::SHARED {
                            let [w0, w1] = D::w32(w[r], states[r].assume_init_ref(), j);
                            for t in 0..T {
                                let x = x[t].add(k + 32 * j);
                                acc[r][t] = I::fma(w1, I::load(x.add(16)), I::fma(w0, I::load(x), acc[r][t]));
                            }
                        }
                    }
                    first += D::SHARED;
                }
                for w in &mut w {
                    *w = w.add(D::BYTES);
                }
                k += D::BLOCK;
            }
            I::reduce_each(acc.as_flattened(), sums.as_flattened_mut());
        }
        for r in 0..R {
            for t in 0..T {
                let sum = add_slices(a, |slice| sums[slice][r][t]);
                put(a.out.add((token + t) * a.ldo + row + r * apart), sum, a.accumulate);
            }
        }
    }
}

/// Scales and adds up the sums of all slices.
#[inline(always)]
pub(super) fn add_slices(a: &LinearArgs, sum: impl Fn(usize) -> f32) -> f32 {
    match a.slices.ends().len() {
        1 => a.scale * sum(0),
        count => tree(&std::array::from_fn::<_, MAX_SLICES, _>(|slice| a.scale * sum(slice))[..count]),
    }
}

/// Takes R rows at a time, each from another part of the matrix. Each part is read from end to end, which suits the hardware's prefetcher.
///
/// # Safety
/// The conditions of [`linear`], with `T` tokens.
#[inline(always)]
unsafe fn few<I: Isa, D: Dequant<I>, const R: usize, const T: usize>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let part = a.rows / R;
        for row in 0..part {
            fused::<I, D, R, T>(a, row, part, 0);
        }
        for row in part * R..a.rows {
            fused::<I, D, 1, T>(a, row, 0, 0);
        }
    }
}

/// A K tile of columns of one slice, and whether it is the slice's first or last.
pub struct Span {
    pub len: usize,
    pub slice: usize,
    pub first: bool,
    pub last: bool,
}

/// The sums of a micro-tile over the K tiles so far: of the slice that is under way, and of complete subtrees of slices.
pub struct Sums {
    pub partial: *mut f32,  // [tokens, rows, LANES]
    pub subtrees: *mut f32, // [heights, tokens, rows]
}

/// Multiplies 4 rows × T tokens over one K tile of dequantised weights.
///
/// # Safety
/// The pointers are valid for the tile that `a` and `span` describe, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn micro<I: Isa, const T: usize>(w: *const f32, x: *const f32, a: &LinearArgs, span: &Span, sums: &Sums, out: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut acc = [[I::zero(); 4]; T];
        if !span.first {
            for t in 0..T {
                for r in 0..4 {
                    acc[t][r] = I::load(sums.partial.add((4 * t + r) * super::LANES));
                }
            }
        }
        let mut k = 0;
        while k < span.len {
            let w =
                [I::load(w.add(k)), I::load(w.add(I::K_TILE + k)), I::load(w.add(2 * I::K_TILE + k)), I::load(w.add(3 * I::K_TILE + k))];
            for t in 0..T {
                let x = I::load(x.add(t * a.ldx + k));
                for r in 0..4 {
                    acc[t][r] = I::fma(w[r], x, acc[t][r]);
                }
            }
            k += super::LANES;
        }
        if !span.last {
            for t in 0..T {
                for r in 0..4 {
                    I::store(sums.partial.add((4 * t + r) * super::LANES), acc[t][r]);
                }
            }
            return;
        }
        // a loop of its own, which compilers unroll, so that the accumulators stay in registers
        let mut ended = [[0f32; 4]; T];
        for t in 0..T {
            I::reduce_add4(acc[t], ended[t].as_mut_ptr());
        }
        for (t, sum) in ended.into_iter().enumerate() {
            end_slice(a, (span.slice, T), sum.map(|sum| a.scale * sum), sums.subtrees.add(4 * t), out.add(t * a.ldo));
        }
    }
}

/// Adds R rows' sums of a slice to those of the subtrees that it completes, and stores the result: after the last slice as the outputs,
/// else as one of the `subtrees`, by height. `tokens`: those of the micro-tile.
///
/// # Safety
/// `subtrees` is valid for `MAX_SLICES * tokens` times R floats, less those before the token's, and holds what the earlier slices left.
/// `out` is valid for R floats.
#[inline(always)]
pub(super) unsafe fn end_slice<const R: usize>(
    a: &LinearArgs,
    (slice, tokens): (usize, usize),
    sum: [f32; R],
    subtrees: *mut f32,
    out: *mut f32,
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let place = |height: usize| subtrees.add(R * tokens * height).cast::<[f32; R]>();
        let (mut sum, mut height) = (sum, 0);
        while slice >> height & 1 == 1 {
            let before = place(height).read();
            sum = std::array::from_fn(|r| before[r] + sum[r]);
            height += 1;
        }
        if slice + 1 < a.slices.ends().len() {
            return place(height).write(sum);
        }
        for (r, sum) in sum.into_iter().enumerate() {
            put(out.add(r), sum, a.accumulate);
        }
    }
}

/// # Safety
/// `w` is valid for the blocks of `cols` columns and `out` for as many floats, and the processor has the instruction set.
#[inline(always)]
unsafe fn dequantise_k_tile<I: Isa, D: Dequant<I>>(w: *const u8, cols: usize, out: *mut f32) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut block = 0;
        while block * D::BLOCK < cols {
            let p = w.add(block * D::BYTES);
            let mut state = MaybeUninit::<D::State>::uninit();
            D::state(p, state.as_mut_ptr());
            let mut first = 0;
            while first < D::BLOCK / 32 {
                for j in first..first + D::SHARED {
                    let [w0, w1] = D::w32(p, state.assume_init_ref(), j);
                    let out = out.add(block * D::BLOCK + 32 * j);
                    I::store(out, w0);
                    I::store(out.add(16), w1);
                }
                first += D::SHARED;
            }
            block += 1;
        }
    }
}

/// Multiplies a K tile of dequantised weights with all tokens, in tiles of 4 rows × some tokens. `x` begins at the tile's columns.
///
/// # Safety
/// The conditions of [`linear`]. The pointers are those of [`many`].
#[inline(always)]
unsafe fn multiply<I: Isa>(
    a: &LinearArgs,
    rows: usize,
    x: *const f32,
    span: &Span,
    (weights, partials, subtrees): (*mut f32, *mut f32, *mut f32),
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut first = 0;
        while first < a.tokens {
            let end = a.tokens.min(first + I::TOKENS);
            for r in (0..rows).step_by(4) {
                let mut t = first;
                while t < end {
                    let tile = a.micro.tile.min(end - t);
                    let at = t * ROW_BLOCK + r * tile;
                    let sums = Sums { partial: partials.add(at * super::LANES), subtrees: subtrees.add(at * MAX_SLICES) };
                    let micro = a.micro.by_tokens[tile - 1];
                    micro(weights.add(r * I::K_TILE), x.add(t * a.ldx), a, span, &sums, a.out.add(t * a.ldo + r));
                    t += tile;
                }
            }
            first = end;
        }
    }
}

/// Takes many tokens: a block of rows is dequantised K tile by K tile and multiplied in tiles of 4 rows × some tokens.
///
/// # Safety
/// The conditions of [`linear`].
#[inline(always)]
unsafe fn many<I: Isa, D: Dequant<I>>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let rows = a.rows / 4 * 4;
        let (weights, partials) = (a.scratch, a.scratch.add(ROW_BLOCK * I::K_TILE));
        let subtrees = partials.add(ROW_BLOCK * (a.tokens + MAX_TILE) * super::LANES);
        let mut k = 0;
        for (slice, &end) in a.slices.ends().iter().enumerate() {
            let start = k;
            while k < end {
                let len = I::K_TILE.min(end - k);
                for r in 0..rows {
                    dequantise_k_tile::<I, D>(a.w.add(r * a.row_bytes + k / D::BLOCK * D::BYTES), len, weights.add(r * I::K_TILE));
                }
                let span = Span { len, slice, first: k == start, last: k + len == end };
                multiply::<I>(a, rows, a.x.add(k), &span, (weights, partials, subtrees));
                k += len;
            }
        }
        for row in rows..a.rows {
            for t in 0..a.tokens {
                fused::<I, D, 1, 1>(a, row, 0, t);
            }
        }
    }
}

/// Multiplies a block of rows with all tokens.
///
/// # Safety
/// The pointers of `a` are valid for the sizes that its fields give, `a.rows` ≤ `ROW_BLOCK` if there are `GEMM_FROM` tokens or more, and
/// the processor has the instruction set.
#[inline(always)]
pub unsafe fn linear<I: Isa, D: Dequant<I>>(a: &LinearArgs) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        match a.tokens {
            0 => {}
            1 if I::ROWS < 4 => few::<I, D, 2, 1>(a),
            1 => few::<I, D, 4, 1>(a),
            2 => few::<I, D, 2, 2>(a),
            3 if I::ROWS < 4 => few::<I, D, 1, 3>(a),
            3 => few::<I, D, 2, 3>(a),
            4 if I::ROWS < 4 => few::<I, D, 1, 4>(a),
            4 => few::<I, D, 2, 4>(a),
            _ => many::<I, D>(a),
        }
    }
}
