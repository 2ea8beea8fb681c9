//! Finishes queries, keys and values: bias, clamp, norm, rotation and temperature.

use super::super::simd::Kernels;
use super::super::simd::norm::Norm;
use super::super::simd::rows::Rows;
use super::buffers::Buffers;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::check::CheckedBatch;
use crate::program::{Covers, FinishHeads, Heads};
use crate::rope::Rope;

/// Heads, with the weights of what is done to them.
pub struct Finish {
    pub heads: Heads,
    bias: Option<Vec<f32>>,
    /// One norm, or one per part of the row that has its own.
    norms: Vec<Norm>,
    /// The number of elements that a norm covers.
    norm_dim: usize,
}

/// What finishing needs of a step.
#[derive(Clone, Copy)]
pub struct Positions<'a> {
    pub batch: CheckedBatch<'a>,
    pub ropes: &'a [Rope],
    pub rotations: &'a [Rows],
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

    /// Copies the heads of row `i` of the step, one after another.
    pub fn gather(&self, buffers: &Buffers, i: usize, to: &mut [f32]) {
        for (head, to) in to.chunks_exact_mut(self.heads.dim).enumerate() {
            to.copy_from_slice(buffers.head(self.heads.from, (i, head), self.heads.dim));
        }
    }

    /// Finishes the heads of row `i` of the step, which lie one after another.
    pub fn finish(&self, kernels: &Kernels, at: &Positions, i: usize, row: &mut [f32]) {
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
            row.chunks_exact_mut(heads.dim).for_each(|head| at.ropes[rope].rotate(&mut head[first..], at.rotations[rope].row(i)));
        }
        if heads.norm_after_rope {
            self.normalise(kernels, row);
        }
        if let Some(temperature) = heads.temperature {
            let factor = temperature.at(at.batch.positions[i]);
            row.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn normalise(&self, kernels: &Kernels, row: &mut [f32]) {
        if self.norms.is_empty() {
            return;
        }
        let each = if self.norm_dim > self.heads.dim { self.norm_dim } else { self.heads.dim };
        for (i, head) in row.chunks_exact_mut(each).enumerate() {
            kernels.norm_in_place(&mut head[..self.norm_dim], &self.norms[i % self.norms.len()]);
        }
    }
}

pub struct HeadsKernel {
    op: FinishHeads,
    finish: Finish,
}

impl HeadsKernel {
    pub fn new(op: &FinishHeads, tensors: &Tensors) -> Self {
        Self { op: *op, finish: Finish::new(&op.heads, tensors) }
    }
}

impl Kernel for HeadsKernel {
    fn run(&self, step: &mut Step) {
        let (kernels, heads) = (step.kernels, &self.finish.heads);
        let at = Positions { batch: step.batch, ropes: step.ropes, rotations: step.rotations };
        let mut rows = Rows::new(heads.count * heads.dim);
        rows.resize(step.inputs.len());
        let buffers = &mut *step.buffers;
        rows.for_each(step.pool, |i, row| {
            self.finish.gather(buffers, i, row);
            self.finish.finish(kernels, &at, i, row);
        });
        let mut out = buffers.take(self.op.to.buffer);
        buffers.for_heads(step.pool, (&mut out, self.op.to), [heads.count, heads.dim], |i, head, to| {
            to.copy_from_slice(&rows.row(i)[head * heads.dim..][..heads.dim]);
        });
        buffers.put(self.op.to.buffer, out);
    }
}
