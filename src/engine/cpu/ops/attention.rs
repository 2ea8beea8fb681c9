//! Attends over a sequence's cached keys and values.

use super::super::simd::attend::{Attend, Mask};
use super::super::simd::packing::rotate;
use super::super::simd::rows::Rows;
use super::buffers::AttentionBuffers;
use super::heads::Finish;
use super::step::{Kernel, Step};
use super::stored_keys::{StoredKeys, prepare_values};
use super::tensors::Tensors;
use crate::CacheType;
use crate::program::Attention;

pub struct AttentionKernel {
    op: Attention,
    queries: Finish,
    keys: Option<Finish>,
    values: Option<Finish>,
    sinks: Option<Vec<f32>>,
    stored: StoredKeys,
    /// The layer whose cache is read.
    layer: usize,
}

impl AttentionKernel {
    pub fn new(op: &Attention, tensors: &Tensors) -> Self {
        let finish = |heads: &Option<_>| heads.as_ref().map(|heads| Finish::new(heads, tensors));
        Self {
            op: *op,
            queries: Finish::new(&op.queries, tensors),
            keys: finish(&op.keys),
            values: finish(&op.values),
            sinks: tensors.optional(op.sinks),
            stored: StoredKeys::new(op, tensors),
            layer: tensors.program.caches[op.cache].layer,
        }
    }

    fn write(&self, step: &mut Step, b: &mut AttentionBuffers) {
        let Some(keys) = &self.keys else { return };
        keys.run(step, &mut b.k);
        let kept = *step.cache.layer(self.layer);
        let places = step.batch.places(kept.group);
        let dims = [keys.heads.dim, self.op.value_dim];
        let AttentionBuffers { k, v, padded: [prepared, values], .. } = b;
        if let Some(values) = &self.values {
            values.run(step, v);
        }
        let v = if self.values.is_some() { &*v } else { &*k };
        if kept.writes_rotations {
            step.cache.write_rotations(step.pool, self.layer, places, &step.rotations[kept.bias.rope]);
        }
        if kept.kept == CacheType::Q8 {
            self.stored.prepare_keys(step, &kept, k, prepared);
            prepare_values(step.pool, [kept.num_kv_heads, self.op.value_dim], v, values);
            return step.cache.write(step.pool, self.layer, places, (prepared, values), dims);
        }
        step.cache.write(step.pool, self.layer, places, (k, v), dims);
    }

    fn attend(&self, step: &mut Step, b: &mut AttentionBuffers, out: &mut Rows) {
        let (op, cache) = (&self.op, &*step.cache);
        let (heads, dim) = (op.queries.count, op.queries.dim);
        let kept = *cache.layer(self.layer);
        let tables = step.batch.num_seqs() * step.batch.max_blocks;
        let a = Attend {
            cache,
            layer: self.layer,
            num_heads: heads,
            scale: op.scale,
            soft_cap: op.soft_cap,
            mask: Mask { window: op.window, kind: op.window_kind, bidirectional: op.bidirectional, run_sight: op.run_sight },
            alibi: op.alibi,
            sinks: self.sinks.as_deref(),
            further: if kept.kept == CacheType::Q8 { self.stored.further() } else { &[] },
            sequences: step.sequences,
            runs: &step.batch.whole_runs,
            tables: &step.batch.block_tables[kept.group * tables..][..tables],
        };
        let [queries, results] = &mut b.padded;
        let is_rotated = kept.kept == CacheType::Q8;
        let q = if is_rotated {
            self.stored.prepare_queries((step.pool, step.weights.spec.rope_pairing), &kept, &b.q, queries);
            queries
        } else if kept.key_dim == dim {
            &b.q
        } else {
            queries.reshape(b.q.num_rows(), heads * kept.key_dim);
            queries.for_each(step.pool, |i, row| spread(b.q.row(i), dim, row, kept.key_dim));
            queries
        };
        let has_row_per_head = step.buffers.has_row_per_head(op.out.buffer);
        if kept.value_dim == op.value_dim && !has_row_per_head {
            step.kernels.attend(q, out, step.pool, &a);
            if is_rotated {
                out.for_each(step.pool, |_, row| row[..heads * op.value_dim].chunks_exact_mut(op.value_dim).for_each(rotate));
            }
            return;
        }
        results.reshape(b.q.num_rows(), heads * kept.value_dim);
        step.kernels.attend(q, results, step.pool, &a);
        step.buffers.for_heads(step.pool, (out, op.out), [heads, op.value_dim], |i, head, to| {
            to.copy_from_slice(&results.row(i)[head * kept.value_dim..][..op.value_dim]);
            if is_rotated {
                rotate(to);
            }
        });
    }
}

impl Kernel for AttentionKernel {
    fn run(&self, step: &mut Step) {
        let mut b = std::mem::take(&mut step.buffers.attention);
        self.write(step, &mut b);
        self.queries.run(step, &mut b.q);
        let mut out = step.buffers.take(self.op.out.buffer);
        self.attend(step, &mut b, &mut out);
        step.buffers.put(self.op.out.buffer, out);
        step.buffers.attention = b;
    }
}

/// Copies heads of `from` floats to heads of `to` floats.
pub fn spread(src: &[f32], from: usize, dst: &mut [f32], to: usize) {
    for (src, dst) in src.chunks_exact(from).zip(dst.chunks_exact_mut(to)) {
        let n = from.min(to);
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..].fill(0.0);
    }
}
