//! Prepares keys and queries for a cache of 8 bits.
//!
//! Keys are stored less their bias, which is often much larger than what differs between keys. With the key k + R b at a position, whose
//! rotation is R, and the bias b, a query's product is q · k + q · R b. The second part is a sum over the rotation's pairs,
//! cos · (q₀ b₀ + q₁ b₁) + sin · (q₁ b₀ − q₀ b₁), so queries bring these two factors of each pair, and the cache holds cosines and sines.

use super::super::layout::keys_of;
use super::super::simd::attend::CacheLayer;
use super::super::simd::packing::rotate;
use super::super::simd::pool::ThreadPool;
use super::super::simd::rows::Rows;
use super::step::Step;
use super::tensors::Tensors;
use crate::program::Attention;
use crate::rope::Rope;

/// The keys of a cache that an attention reads.
pub struct StoredKeys {
    /// Elements per key.
    dim: usize,
    /// [kv_heads · dim] the bias of the layer that writes them. Empty if they have none.
    bias: Vec<f32>,
    /// The first element that is rotated.
    first: usize,
}

impl StoredKeys {
    pub fn new(op: &Attention, tensors: &Tensors) -> Self {
        let keys = keys_of(tensors.program, op.cache);
        let bias = keys.and_then(|keys| tensors.optional(keys.bias)).unwrap_or_default();
        Self { dim: op.queries.dim, bias, first: keys.and_then(|keys| keys.rope).map_or(0, |(_, first)| first) }
    }

    /// Takes the bias off finished keys, and rotates them [num_tokens, kv_heads · dim].
    pub fn prepare_keys(&self, step: &mut Step, layer: &CacheLayer, keys: &Rows, out: &mut Rows) {
        let (ropes, rotations) = (step.ropes, step.rotations);
        out.reshape(keys.num_rows(), keys.width());
        out.for_each(step.pool, |i, row| {
            row.copy_from_slice(keys.row(i));
            if layer.bias.len() > 0 {
                let mut bias = self.bias.clone();
                if layer.bias.pairs > 0 {
                    let (rope, rotation) = (&ropes[layer.bias.rope], rotations[layer.bias.rope].row(i));
                    bias.chunks_exact_mut(self.dim).for_each(|head| rope.rotate(&mut head[self.first..], rotation));
                }
                row.iter_mut().zip(&bias).for_each(|(key, bias)| *key -= bias);
            }
            row.chunks_exact_mut(self.dim).for_each(rotate);
        });
    }

    /// Rotates queries as their keys were, and appends the factors of the bias [num_tokens, heads · query_dim].
    pub fn prepare_queries(&self, (pool, ropes): (&mut ThreadPool, &[Rope]), layer: &CacheLayer, q: &Rows, out: &mut Rows) {
        let (dim, query_dim, num_heads) = (self.dim, layer.query_dim(), q.width() / self.dim);
        let group = num_heads / layer.num_kv_heads;
        out.reshape(q.num_rows(), num_heads * query_dim);
        out.for_each(pool, |i, row| {
            for (h, (q, to)) in q.row(i).chunks_exact(dim).zip(row.chunks_exact_mut(query_dim)).enumerate() {
                to[..dim].copy_from_slice(q);
                rotate(&mut to[..dim]);
                to[dim..layer.key_dim].fill(0.0);
                if layer.bias.len() > 0 {
                    self.factors(ropes, layer, (q, &self.bias[h / group * dim..][..dim]), &mut to[layer.key_dim..]);
                }
            }
        });
    }

    /// Writes a query's factors of cosines, then of sines, then of 1.
    fn factors(&self, ropes: &[Rope], layer: &CacheLayer, (q, bias): (&[f32], &[f32]), out: &mut [f32]) {
        let pairs = layer.bias.pairs;
        let of = |element: usize| (q[self.first + element], bias[self.first + element]);
        for pair in 0..pairs {
            let [(q0, b0), (q1, b1)] = ropes[layer.bias.rope].elements(pair).map(of);
            (out[pair], out[pairs + pair]) = (q0 * b0 + q1 * b1, q1 * b0 - q0 * b1);
        }
        if layer.bias.has_rest {
            let product = |range: std::ops::Range<usize>| q[range.clone()].iter().zip(&bias[range]).map(|(q, b)| q * b).sum::<f32>();
            let rotated = if pairs > 0 { self.first..self.first + 2 * pairs } else { 0..0 };
            out[2 * pairs] = product(0..rotated.start) + product(rotated.end..self.dim);
        }
    }
}
