//! Finishes queries, keys and values: bias, clamp, norm, rotation and temperature.

use super::super::simd::Kernels;
use super::super::simd::norm::Norm;
use super::super::simd::rows::Rows;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{Covers, FinishHeads, Heads, Part};

/// Heads, with the weights of what is done to them.
pub struct Finish {
    pub heads: Heads,
    bias: Option<Vec<f32>>,
    /// One norm, or one per part of the row that has its own.
    norms: Vec<Norm>,
    /// The number of elements that a norm covers.
    norm_dim: usize,
}

impl Finish {
    pub fn new(heads: &Heads, tensors: &Tensors) -> Self {
        let (dim, row) = (heads.dim, heads.count * heads.dim);
        let norm_dim = match heads.norm {
            Some((_, Covers::Row)) => row,
            Some((_, Covers::First(len))) => len,
            _ => dim,
        };
        let norms = heads.norm.map(|(params, _)| tensors.norms(&params, norm_dim)).unwrap_or_default();
        Self { heads: *heads, bias: tensors.optional(heads.bias), norms, norm_dim }
    }

    /// Finishes the heads of all rows of a step into rows of their own [num_tokens, count · dim].
    pub fn run(&self, step: &mut Step, rows: &mut Rows) {
        let Heads { from, count, dim, .. } = self.heads;
        let (kernels, buffers) = (step.kernels, &*step.buffers);
        let (batch, ropes, rotations) = (step.batch, step.ropes, step.rotations);
        rows.reshape(buffers.count(from.buffer), count * dim);
        rows.for_each(step.pool, |i, row| {
            for (head, to) in row.chunks_exact_mut(dim).enumerate() {
                to.copy_from_slice(buffers.head(from, (i, head), dim));
            }
            let rotate = |rope: usize, elements: &mut [f32]| ropes[rope].rotate(elements, rotations[rope].row(i));
            // only language models have queries that grow with their position
            let position = batch.positions.get(i).copied().unwrap_or(0);
            self.finish(kernels, row, position, rotate);
        });
    }

    /// Finishes the heads of a row, which lie one after another.
    fn finish(&self, kernels: &Kernels, row: &mut [f32], position: u32, rotate: impl Fn(usize, &mut [f32])) {
        let heads = &self.heads;
        if let Some(bias) = &self.bias {
            kernels.add_to(row, bias);
        }
        if let Some(clamp) = heads.clamp {
            row.iter_mut().for_each(|x| *x = x.clamp(-clamp, clamp));
        }
        if !heads.norm_after_rope {
            self.normalise(kernels, row);
        }
        if let Some((rope, first)) = heads.rope {
            row.chunks_exact_mut(heads.dim).for_each(|head| rotate(rope, &mut head[first..]));
        }
        if heads.norm_after_rope {
            self.normalise(kernels, row);
        }
        if let Some(temperature) = heads.temperature {
            let factor = temperature.at(position);
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn normalise(&self, kernels: &Kernels, row: &mut [f32]) {
        if self.norms.is_empty() {
            return;
        }
        let each = self.norm_dim.max(self.heads.dim);
        for (i, head) in row.chunks_exact_mut(each).enumerate() {
            kernels.norm_in_place(&mut head[..self.norm_dim], &self.norms[i % self.norms.len()]);
        }
    }
}

pub struct HeadsKernel {
    finish: Finish,
    to: Part,
}

impl HeadsKernel {
    pub fn new(op: &FinishHeads, tensors: &Tensors) -> Self {
        Self { finish: Finish::new(&op.heads, tensors), to: op.to }
    }
}

impl Kernel for HeadsKernel {
    fn run(&self, step: &mut Step) {
        let Heads { count, dim, .. } = self.finish.heads;
        let mut rows = std::mem::take(&mut step.buffers.attention.q);
        self.finish.run(step, &mut rows);
        step.buffers.update(step.pool, self.to, [count, dim], |_, i, head, to| {
            to.copy_from_slice(&rows.row(i)[head * dim..][..dim]);
        });
        step.buffers.attention.q = rows;
    }
}
