//! Buffers of rows that begin on cache lines, and safe parallel drivers for the kernels.

use std::alloc::{Layout, alloc_zeroed};
use std::ops::Range;

use super::attention::{Head, Query, TILE};
use super::linear::{Args, GEMM_FROM, LinearFn, ROW_BLOCK, scratch_len};
use super::norm::Norm;
use super::ops::{Gate, Sigmoidal};
use super::pool::{Disjoint, ThreadPool};
use super::{Kernels, LANES};
use model::{NormKind, WindowKind};

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([f32; LANES]);

/// Rows of `width` floats, each beginning on a cache line. The floats that pad a row to whole lines stay zero.
pub struct Rows {
    lines: Vec<Line>,
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

    /// Makes room for `rows` rows. Their contents are unspecified.
    pub fn resize(&mut self, rows: usize) {
        self.rows = rows;
        let lines = rows * self.ld / LANES;
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LANES]));
        }
    }

    /// Makes room for `rows` rows of `width` floats. If the width changes, all floats become zero.
    pub fn reshape(&mut self, rows: usize, width: usize) {
        if self.width != width {
            let lines = std::mem::take(&mut self.lines);
            *self = Self { lines, ..Self::new(width) };
            self.lines.fill(Line([0.0; LANES]));
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
        // SAFETY: a Line is 16 floats without padding.
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
        // SAFETY: each task has a row of its own.
        pool.run(rows, &|i, _| f(i, unsafe { all.slice(i * ld, width) }));
    }
}

/// A weight matrix as the kernels take it.
pub struct Matrix<'a> {
    pub bytes: &'a [u8],
    pub kernel: LinearFn,
    pub row_bytes: usize,
    pub rows: usize,
    /// Padded to a multiple of 32.
    pub cols: usize,
    /// Factor of the products.
    pub scale: f32,
}

/// A matrix to multiply with consecutive rows of the input. The products go to the same rows of output number `out`.
pub struct Job<'a> {
    pub matrix: Matrix<'a>,
    pub rows: Range<usize>,
    pub out: usize,
}

/// Scratch space of each thread.
#[derive(Default)]
pub struct Scratch(Vec<Rows>);

impl Scratch {
    fn prepare(&mut self, threads: usize, floats: usize) {
        self.0.resize_with(threads, || Rows::new(1024));
        for rows in &mut self.0 {
            rows.resize(floats.div_ceil(1024));
        }
    }
}

impl Kernels {
    /// out = x · Wᵀ, or out += x · Wᵀ with `accumulate`, for matrices that share their input. One fork-join for all of them.
    pub fn linear(&self, pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, accumulate: bool, jobs: Vec<(Matrix, &mut Rows)>) {
        let (matrices, mut outs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let jobs: Vec<_> = matrices.into_iter().enumerate().map(|(out, matrix)| Job { matrix, rows: 0..x.rows, out }).collect();
        self.products(pool, scratch, x, accumulate, &jobs, &mut outs);
    }

    /// out = x · Wᵀ, or out += x · Wᵀ with `accumulate`, for the rows of each job. One fork-join for all of them. Jobs of one output have
    /// different rows, in ascending order.
    pub fn products(&self, pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, accumulate: bool, jobs: &[Job], outs: &mut [&mut Rows]) {
        let most = jobs.iter().map(|job| job.rows.len()).max().unwrap_or(0);
        scratch.prepare(pool.num_threads(), scratch_len(most) + LANES);
        // a job's share of the work
        let cost = |job: &Job| job.matrix.rows * job.rows.len();
        let total: usize = jobs.iter().map(cost).sum();
        let (mut tasks, mut ends) = (Vec::new(), vec![0; outs.len()]);
        for (i, Job { matrix, rows, out }) in jobs.iter().enumerate().filter(|(_, job)| !job.rows.is_empty()) {
            let (job_out, out) = (*out, &outs[*out]);
            assert!(matrix.cols <= x.ld && x.width <= matrix.cols && matrix.rows <= out.ld, "shapes match");
            assert!(rows.end <= x.rows && out.rows == x.rows, "rows are there");
            assert!(rows.start >= ends[job_out], "jobs of an output have different rows, in ascending order");
            ends[job_out] = rows.end;
            assert!(matrix.bytes.len() >= matrix.rows * matrix.row_bytes, "a matrix has all its rows");
            let step = (total / (pool.num_threads() * 8) / rows.len()).next_multiple_of(ROW_BLOCK).clamp(ROW_BLOCK, 512);
            tasks.extend((0..matrix.rows).step_by(step).map(|row| (i, row, step.min(matrix.rows - row))));
        }
        let outs: Vec<_> = outs.iter_mut().map(|out| (out.ld, Disjoint::new(out.floats_mut()))).collect();
        let scratch: Vec<_> = scratch.0.iter_mut().map(|s| Disjoint::new(s.floats_mut())).collect();
        pool.run(tasks.len(), &|task, thread| {
            let (i, first, count) = tasks[task];
            let Job { matrix, rows, out } = &jobs[i];
            let (ldo, out) = outs[*out];
            let block = if rows.len() < GEMM_FROM { count } else { ROW_BLOCK };
            for row in (first..first + count).step_by(block) {
                // SAFETY: rows of the matrix lie within its bytes and columns within the rows of x (asserted above); tasks
                // write different columns or rows of `out`, threads their own scratch; dispatch checked the instruction set.
                unsafe {
                    (matrix.kernel)(&Args {
                        w: matrix.bytes.as_ptr().add(row * matrix.row_bytes),
                        row_bytes: matrix.row_bytes,
                        rows: block.min(first + count - row),
                        cols: matrix.cols,
                        x: x.floats().as_ptr().add(rows.start * x.ld),
                        ldx: x.ld,
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

    /// Attention of each sequence's rows over its cached blocks.
    pub fn attend(&self, q: &Rows, out: &mut Rows, pool: &mut ThreadPool, a: &Attend) {
        let layer = a.cache.layers[a.layer];
        let (heads, dim, value_dim) = (a.num_heads, layer.key_dim, layer.value_dim);
        assert!(q.width >= heads * dim && out.width >= heads * value_dim && q.rows == out.rows, "shapes match");
        assert!(a.sinks.is_none_or(|sinks| sinks.len() == heads), "shapes match");
        let group = heads / layer.num_kv_heads;
        let rows_of = |s: &SequenceRows| s.num_rows * group;
        // a task: some tiles of one sequence and KV head
        let mut tasks = Vec::new();
        for (i, s) in a.sequences.iter().enumerate() {
            assert!(s.first_row + s.num_rows <= q.rows, "a sequence's rows are in the batch");
            let blocks = (s.first_position + s.num_rows).div_ceil(a.cache.block_size);
            assert!(s.blocks.len() >= blocks && s.blocks[..blocks].iter().all(|&b| (b as usize) < a.cache.num_blocks), "blocks exist");
            for kv_head in 0..layer.num_kv_heads {
                tasks.extend((0..rows_of(s)).step_by(8 * TILE).map(|row| (i, kv_head, row)));
            }
        }
        let (ldq, ldo) = (q.ld, out.ld);
        let out = Disjoint::new(out.floats_mut());
        pool.run(tasks.len(), &|task, _| {
            let (i, kv_head, first) = tasks[task];
            let s = &a.sequences[i];
            let head = a.cache.head(a, kv_head, s.blocks);
            let end = rows_of(s).min(first + 8 * TILE);
            for start in (first..end).step_by(TILE) {
                let none = Query {
                    q: std::ptr::null(),
                    out: std::ptr::null_mut(),
                    from: 0,
                    to: 0,
                    position: 0,
                    slope: 0.0,
                    sink: f32::NEG_INFINITY,
                };
                let mut rows = [none; TILE];
                let count = TILE.min(end - start);
                for (r, row) in rows[..count].iter_mut().enumerate() {
                    let (token, h) = ((start + r) / group, kv_head * group + (start + r) % group);
                    let position = s.first_position + token;
                    let (from, to) = a.mask.range(position, s.first_position + s.num_rows);
                    let (slope, sink) = (a.slope(h), a.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]));
                    let at = s.first_row + token;
                    // SAFETY: rows and heads lie within q and out (asserted above); tasks write different heads or rows.
                    let (q, out) = unsafe { (q.floats().as_ptr().add(at * ldq + h * dim), out.at(at * ldo + h * value_dim)) };
                    *row = Query { q, out, from, to, position, slope, sink };
                }
                // SAFETY: the blocks exist (asserted above); each row sees at least its own position.
                unsafe { (self.attention)(&head, &rows[..count]) };
            }
        });
    }
}

/// The rows of one sequence in a batch.
pub struct SequenceRows<'a> {
    pub first_row: usize,
    pub num_rows: usize,
    pub first_position: usize,
    pub blocks: &'a [u32],
}

/// Which positions a row sees.
#[derive(Clone, Copy)]
pub struct Mask {
    pub window: Option<usize>,
    pub kind: WindowKind,
    /// Whether a row sees those behind it.
    pub bidirectional: bool,
}

impl Mask {
    /// The positions that the row at `position` sees, in a sequence of `end` positions so far.
    fn range(&self, position: usize, end: usize) -> (usize, usize) {
        let to = if self.bidirectional { end } else { position + 1 };
        match (self.window, self.kind) {
            (None, _) => (0, to),
            (Some(window), WindowKind::Sliding) => ((position + 1).saturating_sub(window), to),
            (Some(window), WindowKind::Chunked) => (position / window * window, to),
            (Some(window), WindowKind::Symmetric) => (position.saturating_sub(window / 2), to.min(position + window / 2 + 1)),
        }
    }
}

pub struct Attend<'a> {
    pub cache: &'a KvCache,
    pub layer: usize,
    pub num_heads: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    pub mask: Mask,
    /// ALiBi's largest bias.
    pub alibi: Option<f32>,
    /// The score of each head's key without a value.
    pub sinks: Option<&'a [f32]>,
    pub sequences: &'a [SequenceRows<'a>],
}

impl Attend<'_> {
    /// ALiBi's slope of a head. If the number of heads is no power of two, heads past the largest one below it take the odd powers of
    /// the next (Press et al. 2022).
    fn slope(&self, head: usize) -> f32 {
        let Some(max_bias) = self.alibi else { return 0.0 };
        let whole = 1usize << self.num_heads.ilog2();
        let (base, power) = if head < whole { (max_bias, head + 1) } else { (max_bias / 2.0, 2 * (head - whole) + 1) };
        2f32.powf(-base / whole as f32).powi(power as i32)
    }
}

/// Zeroed memory, which the system does not make resident before it is touched. None if there is not enough; `vec!` would end the process.
fn zeroed(floats: usize) -> Option<Vec<f32>> {
    let layout = Layout::array::<f32>(floats).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the layout's size is not 0.
    let start = unsafe { alloc_zeroed(layout) }.cast::<f32>();
    // SAFETY: the memory comes from the allocator that the vector returns it to, with the layout of this many floats, and zero bytes are
    // a valid float.
    (!start.is_null()).then(|| unsafe { Vec::from_raw_parts(start, floats, floats) })
}

/// What a layer keeps in the cache for each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLayer {
    pub num_kv_heads: usize,
    /// Floats of a key, padded with zeros to a multiple of 16.
    pub key_dim: usize,
    /// Floats of a value, padded likewise.
    pub value_dim: usize,
    /// Where the layer's keys and values begin.
    start: [usize; 2],
}

impl CacheLayer {
    /// A layer that keeps `num_kv_heads` keys and values of these lengths.
    pub fn new(num_kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let [key_dim, value_dim] = [key_dim, value_dim].map(|dim| dim.next_multiple_of(LANES));
        Self { num_kv_heads, key_dim, value_dim, start: [0; 2] }
    }

    /// Floats of a block's keys and of its values.
    fn strides(&self, block_size: usize) -> [usize; 2] {
        [self.key_dim, self.value_dim].map(|dim| self.num_kv_heads * dim * block_size)
    }
}

/// The paged KV cache of all layers, float32.
pub struct KvCache {
    k: Vec<f32>, // [layer][block, kv_head, key_dim, block_size]
    v: Vec<f32>, // [layer][block, kv_head, block_size, value_dim]
    pub num_blocks: usize,
    /// A multiple of 32.
    pub block_size: usize,
    pub layers: Vec<CacheLayer>,
}

impl KvCache {
    /// Bytes of K and V. None: the product overflows.
    pub fn bytes(layers: &[CacheLayer], num_blocks: usize, block_size: usize) -> Option<u64> {
        let floats = |layer: &CacheLayer| {
            let token = (layer.key_dim + layer.value_dim).checked_mul(layer.num_kv_heads)?;
            token.checked_mul(block_size)?.checked_mul(num_blocks)
        };
        let all = layers.iter().try_fold(0usize, |sum, layer| sum.checked_add(floats(layer)?))?;
        (all as u64).checked_mul(size_of::<f32>() as u64)
    }

    /// None: the system has not enough memory or addresses.
    pub fn new(mut layers: Vec<CacheLayer>, num_blocks: usize, block_size: usize) -> Option<Self> {
        Self::bytes(&layers, num_blocks, block_size)?;
        let mut floats = [0usize; 2];
        for layer in &mut layers {
            layer.start = floats;
            let strides = layer.strides(block_size);
            floats.iter_mut().zip(strides).for_each(|(sum, stride)| *sum += stride * num_blocks);
        }
        Some(Self { k: zeroed(floats[0])?, v: zeroed(floats[1])?, num_blocks, block_size, layers })
    }

    fn head(&self, a: &Attend, kv_head: usize, blocks: &[u32]) -> Head {
        let layer = self.layers[a.layer];
        let strides = layer.strides(self.block_size);
        let offset = |dim: usize| kv_head * dim * self.block_size;
        Head {
            k: self.k[layer.start[0] + offset(layer.key_dim)..].as_ptr(),
            v: self.v[layer.start[1] + offset(layer.value_dim)..].as_ptr(),
            block_strides: strides,
            block_table: blocks.as_ptr(),
            block_size: self.block_size,
            key_dim: layer.key_dim,
            value_dim: layer.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
        }
    }

    /// Copies a block of every layer.
    pub fn copy_block(&mut self, from: u32, to: u32) {
        for layer in &self.layers {
            let strides = layer.strides(self.block_size);
            for (floats, (start, stride)) in [&mut self.k, &mut self.v].into_iter().zip(layer.start.into_iter().zip(strides)) {
                let [from, to] = [from, to].map(|block| start + block as usize * stride);
                floats.copy_within(from..from + stride, to);
            }
        }
    }

    /// Writes each row's K and V ([num_kv_heads, length]) to the cache positions that `slot_mapping` names.
    pub fn write(&mut self, pool: &mut ThreadPool, layer: usize, slot_mapping: &[u32], (k, v): (&Rows, &Rows), dims: [usize; 2]) {
        let (size, layer) = (self.block_size, self.layers[layer]);
        let [k_stride, v_stride] = layer.strides(size);
        assert!(slot_mapping.iter().all(|&at| (at as usize) < self.num_blocks * size), "positions exist");
        let (cache_k, cache_v) = (Disjoint::new(&mut self.k), Disjoint::new(&mut self.v));
        pool.run(slot_mapping.len(), &|t, _| {
            let (block, offset) = (slot_mapping[t] as usize / size, slot_mapping[t] as usize % size);
            for h in 0..layer.num_kv_heads {
                let to_k = layer.start[0] + block * k_stride + h * layer.key_dim * size;
                let to_v = layer.start[1] + block * v_stride + h * layer.value_dim * size;
                let (k, v) = (&k.row(t)[h * dims[0]..][..dims[0]], &v.row(t)[h * dims[1]..][..dims[1]]);
                // SAFETY: no two rows go to one position of the cache (`Limits::check` saw to it before the step).
                unsafe {
                    cache_v.slice(to_v + offset * layer.value_dim, dims[1]).copy_from_slice(v);
                    for (d, k) in k.iter().enumerate() {
                        *cache_k.at(to_k + d * size + offset) = *k;
                    }
                }
            }
        });
    }
}
