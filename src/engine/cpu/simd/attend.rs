//! Stores keys and values in a paged KV cache, and attends over it.
//!
//! A block holds some tokens of all layers of one cache group, layer after layer, with each layer's keys before its values. All blocks have
//! the size that the largest group needs.

use super::attention::{Head, Query, TILE};
use super::pool::{Disjoint, ThreadPool};
use super::rows::Rows;
use super::zeroed::Zeroed;
use super::{Kernels, LANES};
use crate::Batch;
use crate::check::Places;
use model::WindowKind;
use model::spec::RunSight;

impl Kernels {
    /// Attends with each sequence's rows over its cached blocks.
    pub fn attend(&self, q: &Rows, out: &mut Rows, pool: &mut ThreadPool, a: &Attend) {
        let layer = *a.cache.layer(a.layer);
        let (heads, dim, value_dim) = (a.num_heads, layer.key_dim, layer.value_dim);
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
                tasks.extend((0..rows_of(s)).step_by(8 * TILE).map(|row| (i, kv_head, row)));
            }
        }
        let (ldq, ldo) = (q.ld(), out.ld());
        let out = Disjoint::new(out.floats_mut());
        pool.run(tasks.len(), &|task, _| {
            let (i, kv_head, first) = tasks[task];
            let s = &a.sequences[i];
            let head = a.cache.head(a, kv_head, a.table(i));
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
                    let (from, to) = a.seen(s, position, s.first_row + token);
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
    pub sequences: &'a [SequenceRows],
    /// The rows of each whole run, in order: the first one and their number.
    pub runs: &'a [(u32, u32)],
    /// The sequences' block tables in the layer's cache group, one after another.
    pub tables: &'a [u32],
}

impl Attend<'_> {
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

/// The data per token that a layer keeps in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLayer {
    pub num_kv_heads: usize,
    /// Floats per key, padded with zeros to a multiple of 16.
    pub key_dim: usize,
    /// Floats per value, padded likewise.
    pub value_dim: usize,
    /// The layer's cache group.
    pub group: usize,
    /// Floats per token of the earlier layers of the group.
    before: usize,
}

impl CacheLayer {
    /// A layer that keeps `num_kv_heads` keys and values of these lengths.
    pub fn new(num_kv_heads: usize, key_dim: usize, value_dim: usize) -> Self {
        let [key_dim, value_dim] = [key_dim, value_dim].map(|dim| dim.next_multiple_of(LANES));
        Self { num_kv_heads, key_dim, value_dim, group: 0, before: 0 }
    }

    /// Whether the other layer keeps keys and values of the same shape.
    pub fn has_shape_of(&self, other: &Self) -> bool {
        let shape = |layer: &Self| [layer.num_kv_heads, layer.key_dim, layer.value_dim];
        shape(self) == shape(other)
    }

    /// Floats per token.
    fn width(&self) -> usize {
        self.num_kv_heads * (self.key_dim + self.value_dim)
    }

    /// The starts of a head's keys and values in a block.
    fn starts(&self, head: usize, block_size: usize) -> [usize; 2] {
        let values = self.before + self.num_kv_heads * self.key_dim;
        [self.before + head * self.key_dim, values + head * self.value_dim].map(|floats| floats * block_size)
    }
}

/// The data that each layer of a model keeps in the cache, and its place. `groups` holds the layers of each cache group.
#[derive(Clone, Debug)]
pub struct CacheLayout {
    pub layers: Vec<CacheLayer>,
    /// Floats per token of a block.
    width: usize,
}

impl CacheLayout {
    pub fn new<'a>(mut layers: Vec<CacheLayer>, groups: impl Iterator<Item = &'a [usize]>) -> Self {
        let mut width = 0;
        for (group, members) in groups.enumerate() {
            let mut before = 0;
            for &layer in members {
                (layers[layer].group, layers[layer].before) = (group, before);
                before += layers[layer].width();
            }
            width = width.max(before);
        }
        Self { layers, width }
    }

    /// The size of `num_blocks` blocks, in bytes. None if the product overflows.
    pub fn bytes(&self, num_blocks: usize, block_size: usize) -> Option<u64> {
        let floats = self.width.checked_mul(block_size)?.checked_mul(num_blocks)?;
        (floats as u64).checked_mul(size_of::<f32>() as u64)
    }
}

/// The paged KV cache of all layers, in float32.
///
/// In a block, keys are stored as `[layer of the group][kv_head, key_dim, block_size]` and values as
/// `[layer of the group][kv_head, block_size, value_dim]`.
pub struct KvCache {
    floats: Zeroed, // [num_blocks, width * block_size]
    pub num_blocks: usize,
    /// A multiple of 32.
    pub block_size: usize,
    layout: CacheLayout,
}

impl KvCache {
    /// Makes a cache. None if the system lacks memory or addresses.
    pub fn new(layout: CacheLayout, num_blocks: usize, block_size: usize) -> Option<Self> {
        layout.bytes(num_blocks, block_size)?;
        Some(Self { floats: Zeroed::new(layout.width * block_size * num_blocks)?, num_blocks, block_size, layout })
    }

    /// Gives the memory of block `block` and all later blocks back to the system.
    pub fn give_back_from(&mut self, block: usize) {
        let floats = self.stride() * block;
        self.floats.give_back_from(floats);
    }

    pub fn layer(&self, layer: usize) -> &CacheLayer {
        &self.layout.layers[layer]
    }

    /// Floats per block.
    fn stride(&self) -> usize {
        self.layout.width * self.block_size
    }

    fn head(&self, a: &Attend, kv_head: usize, blocks: &[u32]) -> Head {
        let layer = self.layer(a.layer);
        let [k, v] = layer.starts(kv_head, self.block_size);
        Head {
            k: self.floats[k..].as_ptr(),
            v: self.floats[v..].as_ptr(),
            block_stride: self.stride(),
            block_table: blocks.as_ptr(),
            block_size: self.block_size,
            key_dim: layer.key_dim,
            value_dim: layer.value_dim,
            scale: a.scale,
            soft_cap: a.soft_cap,
        }
    }

    /// The value at a place of the cache, of a layer with one head.
    pub fn value(&self, layer: usize, place: usize) -> &[f32] {
        let (size, kept) = (self.block_size, self.layer(layer));
        let [_, start] = kept.starts(0, size);
        &self.floats[place / size * self.stride() + start + place % size * kept.value_dim..][..kept.value_dim]
    }

    pub fn copy_block(&mut self, from: u32, to: u32) {
        let stride = self.stride();
        let [from, to] = [from, to].map(|block| block as usize * stride);
        self.floats.copy_within(from..from + stride, to);
    }

    /// Writes each row's K and V to its place in the cache, and zeros to the cache's padding [num_kv_heads, length].
    pub fn write(&mut self, pool: &mut ThreadPool, layer: usize, places: Places, (k, v): (&Rows, &Rows), dims: [usize; 2]) {
        let (size, stride, layer) = (self.block_size, self.stride(), *self.layer(layer));
        assert!(places.iter().all(|&at| (at as usize) < self.num_blocks * size), "places exist");
        assert!(dims[0] <= layer.key_dim && dims[1] <= layer.value_dim, "shapes match");
        let floats = Disjoint::new(&mut self.floats);
        pool.run(places.len(), &|t, _| {
            let (block, offset) = (places[t] as usize / size, places[t] as usize % size);
            for h in 0..layer.num_kv_heads {
                let [to_k, to_v] = layer.starts(h, size).map(|start| block * stride + start);
                let (k, v) = (&k.row(t)[h * dims[0]..][..dims[0]], &v.row(t)[h * dims[1]..][..dims[1]]);
                // SAFETY: `Places` are distinct and exist (asserted above), and a task touches its own place alone.
                unsafe {
                    let (value, padding) = floats.slice(to_v + offset * layer.value_dim, layer.value_dim).split_at_mut(dims[1]);
                    value.copy_from_slice(v);
                    padding.fill(0.0);
                    for d in 0..layer.key_dim {
                        *floats.at(to_k + d * size + offset) = k.get(d).copied().unwrap_or(0.0);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::dispatch::available;
    use super::*;
    use crate::check::Limits;
    use crate::{Input, KvCapacity};
    use model::testing::Random;

    const TOKENS: usize = 5;
    const DIM: usize = 16;

    fn random_rows(width: usize, random: &mut Random) -> Rows {
        let mut rows = Rows::new(width);
        rows.resize(TOKENS);
        (0..TOKENS).for_each(|i| rows.row_mut(i).iter_mut().for_each(|x| *x = random.centred()));
        rows
    }

    /// A prompt in block 1 of two.
    fn batch() -> Batch {
        let tokens = TOKENS as u32;
        Batch {
            inputs: vec![Input::Token(0); TOKENS],
            positions: (0..tokens).collect(),
            cu_seqlens_q: vec![0, tokens],
            context_lens: vec![tokens],
            slot_mapping: (32..32 + tokens).collect(),
            block_tables: vec![1],
            max_blocks: 1,
            sequence_slots: vec![0],
            ..Batch::default()
        }
    }

    fn limits() -> Limits {
        Limits {
            kv: KvCapacity::blocks(2, 32),
            num_backed: 2,
            vocab_size: 1,
            embedding_width: 1,
            num_token_types: 0,
            max_slots: 1,
            max_batch_tokens: TOKENS,
            max_context: 32,
            bidirectional: false,
            loops: None,
            refuses_grids: None,
            refuses_rows: None,
            max_adapters: 0,
        }
    }

    #[test]
    fn rows_see_the_keys_and_values_that_were_written_in_parallel() {
        let (batch, mut random, mut pool) = (batch(), Random(3), ThreadPool::new(3).unwrap());
        let places = limits().check(&batch).unwrap().places(0);
        let [q, k, v] = [4, 2, 2].map(|heads| random_rows(heads * DIM, &mut random));
        let sequences = [SequenceRows { first_row: 0, num_rows: TOKENS, first_position: 0, end: TOKENS }];
        let mask = Mask { window: None, kind: WindowKind::Sliding, bidirectional: false, run_sight: RunSight::Causal };
        for kernels in available() {
            let layout = CacheLayout::new(vec![CacheLayer::new(2, DIM, DIM)], [&[0][..]].into_iter());
            let mut cache = KvCache::new(layout, 2, 32).unwrap();
            cache.write(&mut pool, 0, places, (&k, &v), [DIM, DIM]);
            let attend = Attend {
                cache: &cache,
                layer: 0,
                num_heads: 4,
                scale: 0.25,
                soft_cap: None,
                mask,
                alibi: None,
                sinks: None,
                sequences: &sequences,
                runs: &[],
                tables: &batch.block_tables,
            };
            let mut out = random_rows(4 * DIM, &mut random);
            kernels.attend(&q, &mut out, &mut pool, &attend);
            for (t, head) in (0..TOKENS).flat_map(|t| (0..4).map(move |head| (t, head))) {
                let score = |i: usize| {
                    let pairs = q.row(t)[head * DIM..][..DIM].iter().zip(&k.row(i)[head / 2 * DIM..]);
                    (0.25 * pairs.map(|(q, k)| q * k).sum::<f32>()).exp()
                };
                let sum: f32 = (0..=t).map(score).sum();
                for d in 0..DIM {
                    let expected = (0..=t).map(|i| score(i) * v.row(i)[head / 2 * DIM + d]).sum::<f32>() / sum;
                    let got = out.row(t)[head * DIM + d];
                    assert!((got - expected).abs() < 1e-5, "{}: row {t}, head {head}: {got} for {expected}", kernels.name);
                }
            }
        }
    }
}
