//! Stores rows that start on cache lines, and drives the kernels safely and in parallel.

use std::ops::Range;

use super::fixed_block::{FIXED_BLOCK, FixedBlock, SplitFn};
use super::linear::{GEMM_FROM, Kernel, LinearArgs, ROW_BLOCK, scratch_len};
use super::norm::Norm;
use super::ops::{Gate, Sigmoidal};
use super::pool::{Disjoint, ThreadPool};
use super::{Kernels, LANES};
use crate::program::slices::Slices;
use model::NormKind;

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct CacheLine([f32; LANES]);

/// Rows of `width` floats. Each row starts on a cache line. The floats that pad a row to whole lines stay zero.
pub struct Rows {
    lines: Vec<CacheLine>,
    width: usize,
    /// Floats from one row to the next.
    ld: usize,
    rows: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Rows {
    pub fn new(width: usize) -> Self {
        let ld = width.next_multiple_of(32);
        // rows a multiple of 4 KiB apart would share cache sets
        let ld = if ld.is_multiple_of(1024) { ld + LANES } else { ld };
        Self { lines: Vec::new(), width, ld, rows: 0 }
    }

    /// Resizes to `rows` rows with unspecified contents.
    pub fn resize(&mut self, rows: usize) {
        self.rows = rows;
        let lines = rows * self.ld / LANES;
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine([0.0; LANES]));
        }
    }

    /// Resizes to `rows` rows of `width` floats. If the width changes, all floats become zero.
    pub fn reshape(&mut self, rows: usize, width: usize) {
        if self.width != width {
            let lines = std::mem::take(&mut self.lines);
            *self = Self { lines, ..Self::new(width) };
            self.lines.fill(CacheLine([0.0; LANES]));
        }
        self.resize(rows);
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Floats from one row to the next.
    pub(super) fn ld(&self) -> usize {
        self.ld
    }

    pub(super) fn floats(&self) -> &[f32] {
        // SAFETY: a cache line is 16 floats without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.rows * self.ld) }
    }

    pub(super) fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `floats`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.rows * self.ld) }
    }

    pub fn row(&self, i: usize) -> &[f32] {
        &self.floats()[i * self.ld..][..self.width]
    }

    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        let (start, width) = (i * self.ld, self.width);
        &mut self.floats_mut()[start..][..width]
    }

    /// Calls `f(i, row i)` on the pool's threads.
    pub fn for_each(&mut self, pool: &mut ThreadPool, f: impl Fn(usize, &mut [f32]) + Sync) {
        let (ld, width, rows) = (self.ld, self.width, self.rows);
        let all = Disjoint::new(self.floats_mut());
        // SAFETY: each task has a separate row.
        pool.run(rows, &|i, _| f(i, unsafe { all.slice(i * ld, width) }));
    }
}

impl Rows {
    /// Calls `f(i, first column, elements)` on the pool's threads for parts of `step` columns of the rows `which(i)`, which ascend.
    pub fn for_parts(&mut self, pool: &mut ThreadPool, which: &[usize], step: usize, f: impl Fn(usize, usize, &mut [f32]) + Sync) {
        assert!(which.is_sorted_by(|a, b| a < b) && which.last().is_none_or(|&last| last < self.rows), "rows differ and are there");
        let (ld, width, parts) = (self.ld, self.width, self.width.div_ceil(step));
        let all = Disjoint::new(self.floats_mut());
        pool.run(which.len() * parts, &|task, _| {
            let (i, first) = (task / parts, task % parts * step);
            // SAFETY: the rows differ, and so do the parts of each.
            f(i, first, unsafe { all.slice(which[i] * ld + first, step.min(width - first)) });
        });
    }
}

/// A weight matrix in the form that the kernels take.
pub struct Matrix<'a> {
    pub bytes: &'a [u8],
    pub kernel: Kernel,
    /// The bytes from one row to the next.
    pub row_bytes: usize,
    /// The bytes of a row's own columns.
    pub own_bytes: usize,
    pub rows: usize,
    /// The number of columns, padded to a multiple of 32.
    pub cols: usize,
    pub slices: Slices,
    /// A factor of the products.
    pub scale: f32,
}

/// A matrix to multiply with consecutive rows of the input. The products go to the same rows of output `out`.
pub struct Job<'a> {
    pub matrix: Matrix<'a>,
    pub rows: Range<usize>,
    pub out: usize,
}

/// The smallest number of rows for which threads share the conversion to fixed point. Fewer rows take less time than a fork and a join.
const SPLIT_SHARED_FROM: usize = 8;

/// The scratch space of products.
#[derive(Default)]
pub struct Scratch {
    threads: Vec<Rows>,
    fixed: Vec<FixedBlock>,
}

impl Scratch {
    fn prepare(&mut self, threads: usize, floats: usize) {
        self.threads.resize_with(threads, || Rows::new(1024));
        for rows in &mut self.threads {
            rows.resize(floats.div_ceil(1024));
        }
    }

    /// Converts rows of `cols` columns to fixed point. Returns the number of fixed blocks per row.
    fn split(&mut self, pool: &mut ThreadPool, split: SplitFn, x: &Rows, cols: usize) -> usize {
        assert!(cols <= x.ld, "a row has all its columns");
        let each = cols.div_ceil(FIXED_BLOCK);
        self.fixed.resize(self.fixed.len().max(x.rows * each), FixedBlock::ZERO);
        let out = Disjoint::new(&mut self.fixed);
        // SAFETY: a row has `ld` floats, and row i writes its own fixed blocks; dispatch checked the instruction set.
        let row = |i: usize| unsafe { split(x.floats().as_ptr().add(i * x.ld), cols, out.at(i * each)) };
        if x.rows < SPLIT_SHARED_FROM {
            (0..x.rows).for_each(row);
        } else {
            pool.run(x.rows, &|i, _| row(i));
        }
        each
    }
}

impl Kernels {
    /// out = x · Wᵀ, or out += x · Wᵀ with `accumulate`, for matrices that share their input. Takes one fork and join for all matrices.
    pub fn linear(&self, pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, accumulate: bool, jobs: Vec<(Matrix, &mut Rows)>) {
        let (matrices, mut outs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let jobs: Vec<_> = matrices.into_iter().enumerate().map(|(out, matrix)| Job { matrix, rows: 0..x.rows, out }).collect();
        self.products(pool, scratch, x, accumulate, &jobs, &mut outs);
    }

    /// out = x · Wᵀ, or out += x · Wᵀ with `accumulate`, for the rows of each job. Takes one fork and join for all jobs. Jobs of one output
    /// must have different rows, in ascending order.
    pub fn products(&self, pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, accumulate: bool, jobs: &[Job], outs: &mut [&mut Rows]) {
        let most = jobs.iter().map(|job| job.rows.len()).max().unwrap_or(0);
        scratch.prepare(pool.num_threads(), scratch_len(most) + LANES);
        // a job's share of the work
        let cost = |job: &Job| job.matrix.rows * job.rows.len();
        let total: usize = jobs.iter().map(cost).sum();
        let splits = || jobs.iter().filter_map(|job| Some((job.matrix.kernel.split?, job.matrix.cols)));
        let widest = splits().max_by_key(|(_, cols)| *cols);
        let ldf = widest.map_or(0, |(split, cols)| scratch.split(pool, split, x, cols));
        let (mut tasks, mut ends) = (Vec::new(), vec![0; outs.len()]);
        for (i, Job { matrix, rows, out }) in jobs.iter().enumerate().filter(|(_, job)| !job.rows.is_empty()) {
            let (job_out, out) = (*out, &outs[*out]);
            assert!(matrix.cols <= x.ld && x.width <= matrix.cols && matrix.rows <= out.ld, "shapes match");
            assert!(rows.end <= x.rows && out.rows == x.rows, "rows are there");
            assert!(rows.start >= ends[job_out], "jobs of an output have different rows, in ascending order");
            ends[job_out] = rows.end;
            // the columns may be some of a row's
            assert!(matrix.bytes.len() >= matrix.rows.saturating_sub(1) * matrix.row_bytes + matrix.own_bytes, "a matrix has all its rows");
            assert!(matrix.slices.ends().last() == Some(&matrix.cols), "slices end with the columns");
            let step = (total / (pool.num_threads() * 8) / rows.len()).next_multiple_of(ROW_BLOCK).clamp(ROW_BLOCK, 512);
            tasks.extend((0..matrix.rows).step_by(step).map(|row| (i, row, step.min(matrix.rows - row))));
        }
        let outs: Vec<_> = outs.iter_mut().map(|out| (out.ld, Disjoint::new(out.floats_mut()))).collect();
        let (fixed, scratch) = (&scratch.fixed, &mut scratch.threads);
        let scratch: Vec<_> = scratch.iter_mut().map(|s| Disjoint::new(s.floats_mut())).collect();
        pool.run(tasks.len(), &|task, thread| {
            let (i, first, count) = tasks[task];
            let Job { matrix, rows, out } = &jobs[i];
            let (ldo, out) = outs[*out];
            let block = if rows.len() < GEMM_FROM { count } else { ROW_BLOCK };
            for row in (first..first + count).step_by(block) {
                // SAFETY: rows of the matrix lie within its bytes and columns within the rows of x (asserted above); tasks
                // write different columns or rows of `out`, threads their own scratch; dispatch checked the instruction set.
                unsafe {
                    (matrix.kernel.run)(&LinearArgs {
                        w: matrix.bytes.as_ptr().add(row * matrix.row_bytes),
                        row_bytes: matrix.row_bytes,
                        rows: block.min(first + count - row),
                        cols: matrix.cols,
                        slices: matrix.slices,
                        x: x.floats().as_ptr().add(rows.start * x.ld),
                        ldx: x.ld,
                        fixed: fixed.as_ptr().wrapping_add(rows.start * ldf),
                        ldf,
                        tokens: rows.len(),
                        out: out.at(rows.start * ldo + row),
                        ldo,
                        scale: matrix.scale,
                        accumulate,
                        scratch: scratch[thread].at(0),
                        micro: self.micro,
                    });
                }
            }
        });
    }

    /// out = norm(x)
    pub fn norm(&self, out: &mut [f32], x: &[f32], norm: &Norm) {
        assert!(out.len() == x.len(), "shapes match");
        // SAFETY: lengths are equal.
        unsafe { self.norm_at(out.as_mut_ptr(), x.as_ptr(), x.len(), norm) }
    }

    pub fn norm_in_place(&self, x: &mut [f32], norm: &Norm) {
        // SAFETY: the kernels read each vector before they write it.
        unsafe { self.norm_at(x.as_mut_ptr(), x.as_ptr(), x.len(), norm) }
    }

    /// # Safety
    /// Both hold `len` floats.
    unsafe fn norm_at(&self, out: *mut f32, x: *const f32, len: usize, norm: &Norm) {
        assert!(norm.weight.len() == len && norm.bias.as_ref().is_none_or(|bias| bias.len() == len), "shapes match");
        let bias = norm.bias.as_ref().map_or(std::ptr::null(), |bias| bias.as_ptr());
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe {
            match norm.kind {
                NormKind::Rms => {
                    (self.rmsnorm)(out, x, norm.weight.as_ptr(), len, norm.eps);
                    if !bias.is_null() {
                        (self.add)(out, bias, len);
                    }
                }
                NormKind::Layer => (self.layernorm)(out, x, (norm.weight.as_ptr(), bias), len, norm.eps),
            }
        }
    }

    /// x = cap · tanh(x / cap)
    pub fn cap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: dispatch checked the instruction set.
        unsafe { (self.soft_cap)(x.as_mut_ptr(), x.len(), cap) }
    }

    /// out += x
    pub fn add_to(&self, out: &mut [f32], x: &[f32]) {
        assert!(out.len() == x.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.add)(out.as_mut_ptr(), x.as_ptr(), x.len()) }
    }

    /// gate = activation(gate) · up
    pub fn gated(&self, gate: &mut [f32], up: &[f32], activation: Sigmoidal) {
        assert!(gate.len() == up.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.glu)(gate.as_mut_ptr(), up.as_ptr(), up.len(), activation) }
    }

    /// x = activation(x)
    pub fn activate(&self, x: &mut [f32], activation: Sigmoidal) {
        // SAFETY: a null `up` is 1; dispatch checked the instruction set.
        unsafe { (self.glu)(x.as_mut_ptr(), std::ptr::null(), x.len(), activation) }
    }

    /// out += a · b
    pub fn multiply_add(&self, out: &mut [f32], a: &[f32], b: &[f32]) {
        assert!(out.len() == a.len() && out.len() == b.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.multiply_add)(out.as_mut_ptr(), a.as_ptr(), b.as_ptr(), b.len()) }
    }

    /// The product of two vectors.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert!(a.len() == b.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.dot)(a.as_ptr(), b.as_ptr(), a.len()) }
    }

    /// out += Σ factor · row, for a row from `first` on per factor, in their order. Takes the elements of each row from `column` on.
    pub fn add_rows(&self, out: &mut [f32], rows: &Rows, (first, column): (usize, usize), factors: &[f32]) {
        assert!(first + factors.len() <= rows.rows && column + out.len() <= rows.width, "shapes match");
        let from = &rows.floats()[first * rows.ld + column..];
        // SAFETY: each row has the elements; dispatch checked the instruction set.
        unsafe { (self.add_rows)(out.as_mut_ptr(), (from.as_ptr(), rows.ld), factors.as_ptr(), factors.len(), out.len()) }
    }

    /// x *= gate
    pub fn gate(&self, x: &mut [f32], gate: &[f32], kind: Gate) {
        assert!(x.len() == gate.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.gate)(x.as_mut_ptr(), gate.as_ptr(), gate.len(), kind) }
    }

    /// x = ln(1 + e^(x + bias))
    pub fn softplus(&self, x: &mut [f32], bias: &[f32]) {
        assert!(x.len() == bias.len(), "shapes match");
        // SAFETY: lengths are equal; dispatch checked the instruction set.
        unsafe { (self.softplus)(x.as_mut_ptr(), bias.as_ptr(), bias.len()) }
    }

    /// x = e^(factor · x)
    pub fn exp(&self, x: &mut [f32], factor: f32) {
        // SAFETY: dispatch checked the instruction set.
        unsafe { (self.exp)(x.as_mut_ptr(), x.len(), factor) }
    }
}
