//! Attends over the blocks of a [`KvCache`] with the rows of a batch.

use super::Kernels;
use super::attention::{Head, Query, Scoring, TILE};
use super::attention_packed::{PackedHead, TILES};
use super::pool::{Disjoint, ThreadPool};
use super::rows::Rows;
use crate::{Batch, CacheType};
use model::WindowKind;
use model::spec::RunSight;

pub use super::kv_cache::{CacheLayer, CacheLayout, KvCache, StoredBias};

/// The most queries of a task.
const TASK: usize = TILES * TILE;

impl Kernels {
    /// Attends with each sequence's rows over its cached blocks. A query has the elements of a key, and its factors of
    /// what stored keys lack.
    pub fn attend(&self, q: &Rows, out: &mut Rows, pool: &mut ThreadPool, a: &Attend) {
        let layer = *a.cache.layer(a.layer);
        let (heads, dim, value_dim) = (a.num_heads, a.query_dim(), layer.value_dim);
        assert!(a.further.iter().all(|&row| (row as usize) < 2 * layer.bias.pairs), "rotations exist");
        assert!(q.width() >= heads * dim && out.width() >= heads * value_dim && q.num_rows() == out.num_rows(), "shapes match");
        assert!(a.sinks.is_none_or(|sinks| sinks.len() == heads), "shapes match");
        let group = heads / layer.num_kv_heads;
        let rows_of = |s: &SequenceRows| s.num_rows * group;
        // a task: some tiles of one sequence and KV head
        let mut tasks = Vec::new();
        for (i, s) in a.sequences.iter().enumerate() {
            assert!(s.first_row + s.num_rows <= q.num_rows(), "a sequence's rows are in the batch");
            let blocks = s.end.div_ceil(a.cache.block_size);
            let table = a.table(i);
            assert!(table.len() >= blocks && table[..blocks].iter().all(|&b| (b as usize) < a.cache.num_blocks), "blocks exist");
            for kv_head in 0..layer.num_kv_heads {
                tasks.extend((0..rows_of(s)).step_by(TASK).map(|row| (i, kv_head, row)));
            }
        }
        let (ldq, ldo) = (q.ld(), out.ld());
        let out = Disjoint::new(out.floats_mut());
        pool.run(tasks.len(), &|task, _| {
            let (i, kv_head, first) = tasks[task];
            let s = &a.sequences[i];
            let count = TASK.min(rows_of(s) - first);
            let mut rows = [Query::NONE; TASK];
            for (r, row) in rows[..count].iter_mut().enumerate() {
                let (token, h) = ((first + r) / group, kv_head * group + (first + r) % group);
                let position = s.first_position + token;
                let (from, to) = a.seen(s, position, s.first_row + token);
                let (slope, sink) = (a.slope(h), a.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h]));
                let at = s.first_row + token;
                // SAFETY: rows and heads lie within q and out (asserted above); tasks write different heads or rows.
                let (q, out) = unsafe { (q.floats().as_ptr().add(at * ldq + h * dim), out.at(at * ldo + h * value_dim)) };
                *row = Query { q, out, from, to, position, slope, sink };
            }
            // SAFETY: the blocks exist (asserted above); each row sees at least its own position.
            unsafe { self.attend_rows(a, kv_head, a.table(i), &rows[..count]) };
        });
    }

    /// Attends with the queries of a task.
    ///
    /// # Safety
    /// The blocks exist up to the last position that a row sees, and each row sees a position.
    unsafe fn attend_rows(&self, a: &Attend, kv_head: usize, blocks: &[u32], rows: &[Query]) {
        if a.cache.layer(a.layer).kept == CacheType::F32 {
            let head = head(a, kv_head, blocks);
            // SAFETY: the caller keeps the conditions above.
            return rows.chunks(TILE).for_each(|rows| unsafe { (self.attention)(&head, rows) });
        }
        let head = packed_head(a, kv_head, blocks);
        let mut scratch = Vec::<f32>::with_capacity(head.scratch());
        // SAFETY: the caller keeps the conditions above; the scratch memory has room, and is written before it is read.
        unsafe { (self.attention_packed)(&head, rows, scratch.as_mut_ptr()) };
    }
}

/// The rows of one sequence in a batch.
#[derive(Clone, Copy, Debug)]
pub struct SequenceRows {
    pub first_row: usize,
    pub num_rows: usize,
    pub first_position: usize,
    /// The positions that the cache holds.
    pub end: usize,
}

impl SequenceRows {
    /// The rows of each sequence of a batch.
    pub fn of(batch: &Batch) -> Vec<Self> {
        let of = |i: usize| {
            let (rows, end) = (batch.rows(i), batch.context_lens[i] as usize);
            Self { first_row: rows.start, num_rows: rows.len(), first_position: end - rows.len(), end }
        };
        (0..batch.num_seqs()).map(of).collect()
    }
}

/// The positions that a row sees.
#[derive(Clone, Copy)]
pub struct Mask {
    pub window: Option<usize>,
    pub kind: WindowKind,
    /// Whether a row sees later rows.
    pub bidirectional: bool,
    /// What the rows of a whole run see besides.
    pub run_sight: RunSight,
}

impl Mask {
    /// The range of positions that the row at `position` sees, in a sequence of `end` positions so far.
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
    /// The largest bias of ALiBi.
    pub alibi: Option<f32>,
    /// Each head's score of a key without a value.
    pub sinks: Option<&'a [f32]>,
    /// The rows of the cache's rotations that queries have factors for, behind the elements of a key. A last factor is for elements that
    /// are not rotated, if there are any.
    pub further: &'a [u32],
    pub sequences: &'a [SequenceRows],
    /// The rows of each whole run, in order: the first one and their number.
    pub runs: &'a [(u32, u32)],
    /// The sequences' block tables in the layer's cache group, one after another.
    pub tables: &'a [u32],
}

impl Attend<'_> {
    /// The floats per head of a query.
    fn query_dim(&self) -> usize {
        let layer = self.cache.layer(self.layer);
        layer.key_dim + self.further.len() + usize::from(layer.bias.has_rest)
    }

    fn scoring(&self, layer: &CacheLayer) -> Scoring {
        Scoring { key_dim: self.query_dim(), value_dim: layer.value_dim, scale: self.scale, soft_cap: self.soft_cap }
    }

    fn table(&self, i: usize) -> &[u32] {
        let len = self.tables.len() / self.sequences.len();
        &self.tables[i * len..][..len]
    }

    /// The positions that row `at` of the batch sees.
    fn seen(&self, s: &SequenceRows, position: usize, at: usize) -> (usize, usize) {
        let (from, to) = self.mask.range(position, s.end);
        if self.runs.is_empty() || self.mask.run_sight == RunSight::Causal {
            return (from, to);
        }
        let next = self.runs.partition_point(|&(first, _)| first as usize <= at);
        let Some(&(first, len)) = next.checked_sub(1).map(|run| &self.runs[run]).filter(|(first, len)| at < (first + len) as usize) else {
            return (from, to);
        };
        let start = s.first_position + first as usize - s.first_row;
        let from = if self.mask.run_sight == RunSight::Whole { from.min(start) } else { from };
        (from, to.max(start + len as usize))
    }

    /// ALiBi's slope of a head. If the number of heads is not a power of two, heads beyond the largest power of two below it take the odd
    /// powers of the next one (Press et al. 2022).
    fn slope(&self, head: usize) -> f32 {
        let Some(max_bias) = self.alibi else { return 0.0 };
        let whole = 1usize << self.num_heads.ilog2();
        let (base, power) = if head < whole { (max_bias, head + 1) } else { (max_bias / 2.0, 2 * (head - whole) + 1) };
        2f32.powf(-base / whole as f32).powi(power as i32)
    }
}

/// A head of the cache in float32.
fn head(a: &Attend, kv_head: usize, blocks: &[u32]) -> Head {
    let (layer, cache) = (a.cache.layer(a.layer), a.cache);
    let starts = layer.starts(kv_head, cache.block_size);
    let part = |start: usize| cache.bytes()[start..].as_ptr().cast();
    Head {
        k: part(starts.keys),
        v: part(starts.values),
        block_stride: cache.stride() / size_of::<f32>(),
        block_table: blocks.as_ptr(),
        block_size: cache.block_size,
        scoring: a.scoring(layer),
    }
}

/// A head of the cache in fewer bits.
fn packed_head<'a>(a: &Attend<'a>, kv_head: usize, blocks: &[u32]) -> PackedHead<'a> {
    let (layer, cache) = (a.cache.layer(a.layer), a.cache);
    let starts = layer.starts(kv_head, cache.block_size);
    PackedHead {
        cache: cache.bytes().as_ptr(),
        block_stride: cache.stride(),
        block_table: blocks.as_ptr(),
        block_size: cache.block_size,
        keys: starts.keys,
        values: starts.values,
        scales: (layer.kept == CacheType::Q8).then_some([starts.key_scales, starts.value_scales]),
        rotations: layer.rotations(cache.block_size),
        further: a.further,
        has_rest: layer.bias.has_rest,
        stored_dim: layer.key_dim,
        scoring: a.scoring(layer),
    }
}

#[cfg(test)]
#[path = "attend_tests.rs"]
mod tests;
