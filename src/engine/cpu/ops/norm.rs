//! Normalises rows and heads.

use super::super::simd::norm::Norm as Weights;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{Norm, ToLength};

pub struct NormKernel {
    op: Norm,
    /// One norm, or one per head.
    norms: Vec<Weights>,
}

impl NormKernel {
    pub fn new(op: &Norm, tensors: &Tensors) -> Self {
        Self { op: *op, norms: tensors.norms(&op.params, op.dim) }
    }
}

impl Kernel for NormKernel {
    fn run(&self, step: &mut Step) {
        let (op, kernels) = (&self.op, step.kernels);
        let in_place = op.from.buffer == op.to.buffer;
        step.buffers.update(step.pool, op.to, [op.heads, op.dim], |buffers, i, head, to| {
            let norm = &self.norms[head % self.norms.len()];
            match in_place {
                true => kernels.norm_in_place(to, norm),
                false => kernels.norm(to, buffers.head(op.from, (i, head), op.dim), norm),
            }
        });
    }
}

pub struct ToLengthKernel(pub ToLength);

impl Kernel for ToLengthKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.0;
        step.buffers.update(step.pool, op.at, [op.heads, op.dim], |_, _, _, x| {
            let factor = op.length / sum_of_squares(x).sqrt().max(op.eps);
            x.iter_mut().for_each(|x| *x *= factor);
        });
    }
}

/// The sum of squares in 16 partial sums, which compilers turn into vectors.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for part in x.chunks(16) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    sums.iter().sum()
}
