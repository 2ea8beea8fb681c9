//! Attends with a tile of query rows over one KV head of the paged cache.
//!
//! A block holds K as [kv_head][head_dim][block_size], so that 16 positions are lanes and a score needs no horizontal sum. It holds V as
//! [kv_head][block_size][head_dim]. Blocks are taken in ascending order with an online softmax. So a query's arithmetic depends only on its
//! own position, never on the other rows of the batch.

use super::{Isa, LANES};

/// Queries per tile. The queries share a KV head and the passes over its blocks.
pub const TILE: usize = 4;
/// Positions per step of the online softmax.
pub const STEP: usize = 32;

/// A query: one head of one token.
#[derive(Clone, Copy)]
pub struct Query {
    pub q: *const f32,
    pub out: *mut f32,
    /// The query sees the positions `from..to`.
    pub from: usize,
    pub to: usize,
    /// The query's own position.
    pub position: usize,
    /// ALiBi: a score falls by `slope` per position between query and key.
    pub slope: f32,
    /// The score of a key without a value, which only takes part in the softmax. Negative infinity if there is none.
    pub sink: f32,
}

impl Query {
    /// No query: the place of one in a task.
    pub const NONE: Self =
        Self { q: std::ptr::null(), out: std::ptr::null_mut(), from: 0, to: 0, position: 0, slope: 0.0, sink: f32::NEG_INFINITY };
}

/// How a query scores keys and sums values.
#[derive(Clone, Copy)]
pub struct Scoring {
    /// Floats of a query and of a key.
    pub key_dim: usize,
    /// Floats of a value: a multiple of 16.
    pub value_dim: usize,
    pub scale: f32,
    /// Caps scaled scores: s becomes cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
}

/// The parameters that all queries of a tile share.
#[derive(Clone, Copy)]
pub struct Head {
    /// K and V of block 0 for this layer and KV head.
    pub k: *const f32,
    pub v: *const f32,
    /// Floats from one block to the next.
    pub block_stride: usize,
    pub block_table: *const u32,
    /// A multiple of 16.
    pub block_size: usize,
    pub scoring: Scoring,
}

pub type AttentionFn = unsafe fn(&Head, &[Query]);

/// The online softmax of one query.
#[derive(Clone, Copy)]
pub struct Softmax {
    max: f32,
    sum: [f32; LANES],
}

impl Softmax {
    /// The state before the first position.
    pub fn new(query: &Query) -> Self {
        let mut state = Self { max: f32::NEG_INFINITY, sum: [0.0; LANES] };
        if query.sink != f32::NEG_INFINITY {
            (state.max, state.sum[0]) = (query.sink, 1.0);
        }
        state
    }
}

/// The keys and values of one step.
#[derive(Clone, Copy)]
pub struct StepRows {
    /// The first position.
    pub start: usize,
    pub k: *const f32,
    /// Floats from one element of the keys to the next.
    pub k_stride: usize,
    pub v: *const f32,
}

/// Computes the scores of `R` queries for the `STEP` positions that start at `k`, `C` vectors of positions at a time. The first pass
/// prefetches for the second.
///
/// # Safety
/// There are `R` rows. The keys of `at` are valid for `h.key_dim` rows of `STEP` floats that are `at.k_stride` floats apart, each query's
/// `q` for `h.key_dim` floats, and the processor has the instruction set.
#[inline(always)]
unsafe fn scores<I: Isa, const R: usize, const C: usize>(h: &Scoring, rows: &[Query], at: &StepRows, out: &mut [[f32; STEP]; TILE]) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let scale = I::splat(h.scale);
        for first in (0..STEP).step_by(C * LANES) {
            let mut acc = [[I::zero(); C]; R];
            for d in 0..h.key_dim {
                let k = at.k.add(d * at.k_stride + first);
                if first + C * LANES < STEP {
                    I::prefetch(k.add(C * LANES).cast());
                }
                let mut keys = [I::zero(); C];
                for c in 0..C {
                    keys[c] = I::load(k.add(c * LANES));
                }
                for r in 0..R {
                    let q = I::splat(*rows[r].q.add(d));
                    for c in 0..C {
                        acc[r][c] = I::fma(q, keys[c], acc[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    let s = I::mul(acc[r][c], scale);
                    let s = if let Some(cap) = h.soft_cap { I::soft_cap(s, cap) } else { s };
                    I::store(out[r].as_mut_ptr().add(first + c * LANES), s);
                }
            }
        }
    }
}

/// Runs one step of the online softmax: turns scores into weights in place. Returns the factor for earlier sums.
///
/// # Safety
/// The processor has the instruction set.
#[inline(always)]
unsafe fn weigh<I: Isa>(s: &mut [f32; STEP], lo: usize, hi: usize, state: &mut Softmax) -> f32 {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        for (i, s) in s.iter_mut().enumerate() {
            if i < lo || i >= hi {
                *s = f32::NEG_INFINITY;
            }
        }
        let (a, b) = (I::load(s.as_ptr()), I::load(s.as_ptr().add(16)));
        let max = state.max.max(I::reduce_max(I::max(a, b)));
        let m = I::splat(max);
        I::store(s.as_mut_ptr(), I::exp(I::sub(a, m)));
        I::store(s.as_mut_ptr().add(16), I::exp(I::sub(b, m)));
        // exp never returns zero, but the weight of a masked position must be zero
        for (i, s) in s.iter_mut().enumerate() {
            if i < lo || i >= hi {
                *s = 0.0;
            }
        }
        let mut scale = [0f32; LANES];
        I::store(scale.as_mut_ptr(), I::exp(I::splat(state.max - max)));
        let rescale = if state.max == f32::NEG_INFINITY { 0.0 } else { scale[0] };
        let sum = I::fma(I::load(state.sum.as_ptr()), I::splat(rescale), I::load(s.as_ptr()));
        I::store(state.sum.as_mut_ptr(), I::add(sum, I::load(s.as_ptr().add(16))));
        state.max = max;
        rescale
    }
}

/// out[r] = out[r] · rescale[r] + Σ_i p[r][i] · v[i] over positions lo..hi, D vectors of the head at a time. The first pass prefetches for
/// the others.
///
/// # Safety
/// There are `R` rows. `v` is valid for `range.1` positions of `h.value_dim` floats and each query's `out` for `h.value_dim` floats, which
/// is a multiple of 16 · `D`, and the processor has the instruction set.
#[inline(always)]
unsafe fn values<I: Isa, const R: usize, const D: usize>(
    h: &Scoring,
    rows: &[Query],
    v: *const f32,
    p: &[[f32; STEP]; TILE],
    rescale: &[f32; TILE],
    range: (usize, usize),
) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut d = 0;
        while d < h.value_dim {
            let mut acc = [[I::zero(); D]; R];
            for r in 0..R {
                for c in 0..D {
                    acc[r][c] = I::mul(I::load(rows[r].out.add(d + 16 * c)), I::splat(rescale[r]));
                }
            }
            for i in range.0..range.1 {
                let v = v.add(i * h.value_dim + d);
                if d == 0 && I::ROWS < 4 {
                    for ahead in (16 * D..h.value_dim).step_by(16) {
                        I::prefetch(v.add(ahead).cast());
                    }
                }
                for c in 0..D {
                    let v = I::load(v.add(16 * c));
                    for r in 0..R {
                        acc[r][c] = I::fma(I::splat(p[r][i]), v, acc[r][c]);
                    }
                }
            }
            for r in 0..R {
                for c in 0..D {
                    I::store(rows[r].out.add(d + 16 * c), acc[r][c]);
                }
            }
            d += 16 * D;
        }
    }
}

/// Begins the sums of queries.
///
/// # Safety
/// Each query's `out` is valid for `value_dim` floats.
pub unsafe fn begin(rows: &[Query], value_dim: usize) {
    for row in rows {
        // SAFETY: the caller keeps the conditions above.
        unsafe { std::slice::from_raw_parts_mut(row.out, value_dim).fill(0.0) };
    }
}

/// The positions that a tile's queries see, from the beginning of a step.
pub fn seen(rows: &[Query]) -> (usize, usize) {
    let from = rows.iter().map(|r| r.from).min().unwrap_or(0) / STEP * STEP;
    (from, rows.iter().map(|r| r.to).max().unwrap_or(0))
}

/// Attends over one step.
///
/// # Safety
/// The conditions of [`attention`], with `R` queries and their states. `at` points to the step's keys and values.
#[inline(always)]
pub unsafe fn step<I: Isa, const R: usize>(h: &Scoring, rows: &[Query], states: &mut [Softmax], at: &StepRows) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut s = [[0f32; STEP]; TILE];
        // as many sums as fit in registers
        if I::ROWS < 4 {
            scores::<I, R, 1>(h, rows, at, &mut s);
        } else {
            scores::<I, R, 2>(h, rows, at, &mut s);
        }
        let (mut rescale, mut range) = ([1f32; TILE], (STEP, 0));
        for r in 0..R {
            let lo = rows[r].from.saturating_sub(at.start).min(STEP);
            let hi = rows[r].to.saturating_sub(at.start).min(STEP);
            if rows[r].slope != 0.0 {
                for (i, s) in s[r].iter_mut().enumerate() {
                    *s -= rows[r].slope * rows[r].position.abs_diff(at.start + i) as f32;
                }
            }
            if lo < hi {
                rescale[r] = weigh::<I>(&mut s[r], lo, hi, &mut states[r]);
                range = (range.0.min(lo), range.1.max(hi));
            } else {
                s[r] = [0.0; STEP];
            }
        }
        if I::ROWS == 4 && h.value_dim.is_multiple_of(64) {
            values::<I, R, 4>(h, rows, at.v, &s, &rescale, range);
        } else {
            values::<I, R, 1>(h, rows, at.v, &s, &rescale, range);
        }
    }
}

/// Divides the sums by those of the weights.
///
/// # Safety
/// Each query's `out` is valid for `value_dim` floats, and the processor has the instruction set.
#[inline(always)]
pub unsafe fn finish<I: Isa>(rows: &[Query], states: &[Softmax], value_dim: usize) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        for (row, state) in rows.iter().zip(states) {
            let scale = I::splat(1.0 / I::reduce_add(I::load(state.sum.as_ptr())));
            for d in (0..value_dim).step_by(16) {
                I::store(row.out.add(d), I::mul(I::load(row.out.add(d)), scale));
            }
        }
    }
}

/// # Safety
/// The conditions of [`attention`], with `R` queries.
#[inline(always)]
unsafe fn tile<I: Isa, const R: usize>(h: &Head, rows: &[Query]) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        let mut states: [Softmax; R] = std::array::from_fn(|r| Softmax::new(&rows[r]));
        begin(rows, h.scoring.value_dim);
        let (from, to) = seen(rows);
        for start in (from..to).step_by(STEP) {
            let block = *h.block_table.add(start / h.block_size) as usize * h.block_stride;
            let offset = start % h.block_size;
            let (k, v) = (h.k.add(block + offset), h.v.add(block + offset * h.scoring.value_dim));
            step::<I, R>(&h.scoring, rows, &mut states, &StepRows { start, k, k_stride: h.block_size, v });
        }
        finish::<I>(rows, &states, h.scoring.value_dim);
    }
}

/// Attends with one tile of queries.
///
/// # Safety
/// Queries and head point to live memory. There are at most `TILE` queries, and each sees at least one position. The length of values is a
/// multiple of 16. The processor has the instruction set.
#[inline(always)]
pub unsafe fn attention<I: Isa>(h: &Head, rows: &[Query]) {
    // SAFETY: the caller keeps the conditions above.
    unsafe {
        match rows.len() {
            1 => tile::<I, 1>(h, rows),
            2 => tile::<I, 2>(h, rows),
            3 => tile::<I, 3>(h, rows),
            4 => tile::<I, 4>(h, rows),
            _ => {}
        }
    }
}
