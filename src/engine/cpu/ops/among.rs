//! Attends over the rows of the step itself.

use std::ops::Range;

use super::super::simd::LANES;
use super::super::simd::attend::{Attend, CacheLayer, CacheLayout, KvCache, Mask, SequenceRows};
use super::heads::Finish;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::check::Places;
use crate::program::{Among, RowSet};
use model::WindowKind;
use model::spec::RunSight;

/// Rows per block of the keys and values.
const BLOCK: usize = 32;

/// Computes in a cache of its own, in which each group of rows has its own blocks. So it shares the kernels of language models.
pub struct AmongKernel {
    op: Among,
    queries: Finish,
    keys: Finish,
    values: Finish,
}

impl AmongKernel {
    pub fn new(op: &Among, tensors: &Tensors) -> Self {
        let [queries, keys, values] = [&op.queries, &op.keys, &op.values].map(|heads| Finish::new(heads, tensors));
        Self { op: *op, queries, keys, values }
    }
}

/// The blocks of groups of rows.
struct Blocks {
    count: usize,
    /// The place of each row.
    places: Vec<u32>,
    /// [groups, blocks of the largest group]
    tables: Vec<u32>,
}

impl Blocks {
    /// Gives each group, which lie one after another, blocks of its own.
    fn new(groups: &[Range<usize>]) -> Self {
        let most = groups.iter().map(|group| group.len().div_ceil(BLOCK)).max().unwrap_or(0);
        let mut blocks = Self { count: 0, places: Vec::new(), tables: Vec::new() };
        for group in groups {
            let (first, used) = (blocks.count, group.len().div_ceil(BLOCK));
            // rows between groups have no keys
            blocks.places.extend((0..group.len()).map(|i| (first * BLOCK + i) as u32));
            blocks.tables.extend((first..first + used).map(|block| block as u32));
            blocks.tables.extend(std::iter::repeat_n(0, most - used));
            blocks.count += used;
        }
        blocks
    }
}

impl Kernel for AmongKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        let mut b = std::mem::take(&mut step.buffers.attention);
        self.keys.run(step, &mut b.k);
        self.values.run(step, &mut b.v);
        self.queries.run(step, &mut b.q);
        let groups = step.pictures.groups(op.within);
        let of_queries = match step.buffers.set(op.queries.from.buffer) {
            RowSet::Tower => groups.clone(),
            set => step.pictures.of_pictures(set),
        };
        let blocks = Blocks::new(&groups);
        let (key_dim, value_dim) = (op.keys.dim, op.values.dim);
        let layer = CacheLayer::new(op.keys.count, key_dim, value_dim);
        let mut cache = match step.buffers.among.take() {
            Some(cache) if cache.num_blocks >= blocks.count && cache.layer(0).has_shape_of(&layer) => cache,
            _ => KvCache::new(CacheLayout::new(vec![layer], [&[0][..]].into_iter()), blocks.count, BLOCK)
                .expect("memory for the keys of a step"),
        };
        let places = Places::distinct(&blocks.places, cache.num_blocks * BLOCK).expect("each row has a place of its own");
        cache.write(step.pool, 0, places, (&b.k, &b.v), [key_dim, value_dim]);
        let rows = |(queries, keys): (Range<usize>, &Range<usize>)| SequenceRows {
            first_row: queries.start,
            num_rows: queries.len(),
            first_position: 0,
            end: keys.len(),
        };
        let sequences: Vec<_> = of_queries.into_iter().zip(&groups).map(rows).collect();
        let attend = Attend {
            cache: &cache,
            layer: 0,
            num_heads: op.queries.count,
            scale: op.scale,
            soft_cap: None,
            mask: Mask { window: None, kind: WindowKind::Sliding, bidirectional: true, run_sight: RunSight::Causal },
            alibi: None,
            sinks: None,
            further: &[],
            sequences: &sequences,
            runs: &[],
            tables: &blocks.tables,
        };
        let mut out = step.buffers.take(op.out.buffer);
        let (heads, padded) = (op.queries.count, key_dim.next_multiple_of(LANES));
        let [queries, results] = &mut b.padded;
        if padded == key_dim {
            step.kernels.attend(&b.q, &mut out, step.pool, &attend);
        } else {
            queries.reshape(b.q.num_rows(), heads * padded);
            queries.for_each(step.pool, |i, row| super::attention::spread(b.q.row(i), key_dim, row, padded));
            results.reshape(b.q.num_rows(), heads * padded);
            step.kernels.attend(queries, results, step.pool, &attend);
            out.for_each(step.pool, |i, row| super::attention::spread(results.row(i), padded, row, value_dim));
        }
        step.buffers.put(op.out.buffer, out);
        step.buffers.attention = b;
        step.buffers.among = Some(cache);
    }
}
