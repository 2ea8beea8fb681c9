//! Chooses what is taken off keys before a cache of 8 bits stores them.
//!
//! A pair of elements costs two products per query and key to add again, so pairs whose bias is small beside what differs between keys
//! stay in them. What differs is estimated from the weights of keys, as if all elements of their normalised input were independent and of
//! variance 1. Each head is judged alone, so that shards choose what the whole model does.

use super::super::layout::{keys_of, stored_bias};
use super::super::matrix::dequantize_row;
use super::tensors::Tensors;
use crate::program::{Heads, Op, TensorId};
use crate::rope::pair_elements;

/// The bias that may stay in keys, as a share of the squares of what differs between them.
const STAYS: f64 = 0.25;
/// The most rows of weights per head that an estimate reads.
const SAMPLE: usize = 8;

/// What is taken off the keys of a cache.
#[derive(Default)]
pub struct KeyBias {
    /// [kv_heads · dim] 0 where the bias stays. Empty if keys have none.
    pub bias: Vec<f32>,
    /// The pairs of which a head's bias is taken off.
    pub pairs: Vec<usize>,
}

impl KeyBias {
    pub fn new(cache: usize, tensors: &Tensors) -> Self {
        let stored = stored_bias(tensors.program, &tensors.weights.spec, cache);
        let Some(keys) = keys_of(tensors.program, cache).filter(|_| stored.pairs > 0 || stored.has_rest) else { return Self::default() };
        let mut bias = tensors.optional(keys.bias).unwrap_or_default();
        let first = keys.rope.map_or(0, |(_, first)| first);
        let elements = |pair| pair_elements(tensors.program.pairing, stored.pairs, pair).map(|element| first + element);
        let stays = differing(keys, tensors).unwrap_or_else(|| vec![0.0; keys.count]);
        let mut is_taken = vec![false; stored.pairs];
        for (head, stays) in bias.chunks_exact_mut(keys.dim).zip(stays) {
            let square = |head: &[f32], pair| elements(pair).iter().map(|&i| f64::from(head[i]).powi(2)).sum::<f64>();
            let mut pairs: Vec<(f64, usize)> = (0..stored.pairs).map(|pair| (square(head, pair), pair)).collect();
            pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut sum = 0.0;
            for (square, pair) in pairs {
                sum += square;
                match sum <= STAYS * stays {
                    true => elements(pair).iter().for_each(|&i| head[i] = 0.0),
                    false => is_taken[pair] = true,
                }
            }
        }
        Self { bias, pairs: (0..stored.pairs).filter(|&pair| is_taken[pair]).collect() }
    }
}

/// An estimate of the squares of what differs between keys, summed over a head [kv_heads]. None if the keys' weights are not a matrix
/// behind a norm.
fn differing(keys: &Heads, tensors: &Tensors) -> Option<Vec<f64>> {
    let ops = &tensors.program.ops;
    let attention = ops.iter().position(|step| matches!(&step.op, Op::Attention(op) if op.keys.as_ref() == Some(keys)))?;
    let product = |op: &Op| -> Option<TensorId> {
        let Op::Linear(op) = op else { return None };
        op.products.iter().find(|(_, out)| *out == keys.from.buffer).map(|(matrix, _)| matrix)
    };
    let (at, matrix) = (0..attention).rev().find_map(|at| Some((at, product(&ops[at].op)?)))?;
    let Op::Linear(linear) = &ops[at].op else { return None };
    let norm = (0..at).rev().find_map(|at| match &ops[at].op {
        Op::Norm(norm) if norm.to.buffer == linear.input => Some(norm),
        _ => None,
    })?;
    let weight = tensors.weight(matrix).ok().filter(|weight| weight.stack.is_none())?;
    let factors = tensors.optional(norm.params.weight).unwrap_or_else(|| vec![1.0; weight.cols]);
    let scale = tensors.weights.scales(&weight).first().copied().unwrap_or(1.0);
    if factors.len() != weight.cols || weight.rows < keys.from.first + (keys.count - 1) * keys.from.stride + keys.dim {
        return None;
    }
    let step = keys.dim.div_ceil(SAMPLE);
    let mut row = vec![0.0; weight.cols];
    let mut of_head = |head: usize| {
        let rows = (0..keys.dim).step_by(step);
        let squares = rows.clone().map(|element| {
            dequantize_row(tensors.weights, &weight, keys.from.first + head * keys.from.stride + element, &mut row);
            row.iter().zip(&factors).map(|(w, g)| f64::from(w * g * scale).powi(2)).sum::<f64>()
        });
        squares.sum::<f64>() / rows.len() as f64 * keys.dim as f64
    };
    Some((0..keys.count).map(&mut of_head).collect())
}
