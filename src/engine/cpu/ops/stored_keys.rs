//! Prepares keys, values and queries for a cache of 8 bits.
//!
//! Keys are stored less their bias, which is often much larger than what differs between keys. With the key k + R b at a position, whose
//! rotation is R, and the bias b, a query's product is q · k + q · R b. The second part is a sum over the rotation's pairs,
//! cos · (q₀ b₀ + q₁ b₁) + sin · (q₁ b₀ − q₀ b₁), so queries bring these two factors of each pair, and the cache holds cosines and sines.

use std::ops::Range;

use super::super::layout::{keys_of, stored_bias};
use super::super::simd::attend::CacheLayer;
use super::super::simd::packing::rotate;
use super::super::simd::pool::ThreadPool;
use super::super::simd::rows::Rows;
use super::key_bias::KeyBias;
use super::step::Step;
use super::tensors::Tensors;
use crate::program::Attention;
use crate::rope::pair_elements;
use model::RopePairing;

/// The keys of a cache that an attention reads.
pub struct StoredKeys {
    /// Elements per key.
    dim: usize,
    taken: KeyBias,
    /// The first element that is rotated.
    first: usize,
    /// The rows of the cache's rotations that queries have factors for: cosines, then sines.
    further: Vec<u32>,
}

impl StoredKeys {
    pub fn new(op: &Attention, tensors: &Tensors) -> Self {
        let first = keys_of(tensors.program, op.cache).and_then(|keys| keys.rope).map_or(0, |(_, first)| first);
        let taken = KeyBias::new(op.cache, tensors);
        let all = stored_bias(tensors.program, &tensors.weights.spec, op.cache).pairs;
        let cosines = taken.pairs.iter().map(|&pair| pair as u32);
        let further = cosines.clone().chain(cosines.map(|row| all as u32 + row)).collect();
        Self { dim: op.queries.dim, taken, first, further }
    }

    /// The rows of the cache's rotations that queries have factors for.
    pub fn further(&self) -> &[u32] {
        &self.further
    }

    /// Takes the bias off finished keys, and rotates them [num_tokens, kv_heads · dim].
    pub fn prepare_keys(&self, step: &mut Step, layer: &CacheLayer, keys: &Rows, out: &mut Rows) {
        let (ropes, rotations) = (step.ropes, step.rotations);
        out.reshape(keys.num_rows(), keys.width());
        out.for_each(step.pool, |i, row| {
            row.copy_from_slice(keys.row(i));
            if !self.taken.bias.is_empty() {
                let mut bias = self.taken.bias.clone();
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
    pub fn prepare_queries(&self, (pool, pairing): (&mut ThreadPool, RopePairing), layer: &CacheLayer, q: &Rows, out: &mut Rows) {
        let (dim, num_heads) = (self.dim, q.width() / self.dim);
        let query_dim = layer.key_dim + self.further.len() + usize::from(layer.bias.has_rest);
        let group = num_heads / layer.num_kv_heads;
        out.reshape(q.num_rows(), num_heads * query_dim);
        out.for_each(pool, |i, row| {
            for (h, (q, to)) in q.row(i).chunks_exact(dim).zip(row.chunks_exact_mut(query_dim)).enumerate() {
                to[..dim].copy_from_slice(q);
                rotate(&mut to[..dim]);
                to[dim..layer.key_dim].fill(0.0);
                if query_dim > layer.key_dim {
                    self.factors(pairing, layer, (q, &self.taken.bias[h / group * dim..][..dim]), &mut to[layer.key_dim..]);
                }
            }
        });
    }

    /// Writes a query's factors of cosines, then of sines, then of 1.
    fn factors(&self, pairing: RopePairing, layer: &CacheLayer, (q, bias): (&[f32], &[f32]), out: &mut [f32]) {
        let (pairs, taken) = (layer.bias.pairs, self.taken.pairs.len());
        for (i, &pair) in self.taken.pairs.iter().enumerate() {
            let [(q0, b0), (q1, b1)] = pair_elements(pairing, pairs, pair).map(|at| (q[self.first + at], bias[self.first + at]));
            (out[i], out[taken + i]) = (q0 * b0 + q1 * b1, q1 * b0 - q0 * b1);
        }
        if layer.bias.has_rest {
            let product = |range: Range<usize>| q[range.clone()].iter().zip(&bias[range]).map(|(q, b)| q * b).sum::<f32>();
            let rotated = if pairs > 0 { self.first..self.first + 2 * pairs } else { 0..0 };
            out[2 * taken] = product(0..rotated.start) + product(rotated.end..self.dim);
        }
    }
}

/// Rotates finished values [num_tokens, kv_heads · value_dim]. The rotation is its own inverse, so rotating results gives those of the
/// values themselves.
pub fn prepare_values(pool: &mut ThreadPool, [heads, value_dim]: [usize; 2], values: &Rows, out: &mut Rows) {
    out.reshape(values.num_rows(), heads * value_dim);
    out.for_each(pool, |i, row| {
        row.copy_from_slice(&values.row(i)[..heads * value_dim]);
        row.chunks_exact_mut(value_dim).for_each(rotate);
    });
}
