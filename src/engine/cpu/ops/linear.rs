//! Multiplies rows with matrices.

use super::super::matrix::Mat;
use super::super::simd::rows::{Job, Rows};
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::EngineError;
use crate::program::{BufferId, EachHead, Linear};

pub struct LinearKernel {
    input: BufferId,
    products: Vec<(Mat, BufferId)>,
    add: bool,
}

impl LinearKernel {
    pub fn new(op: &Linear, tensors: &Tensors) -> Result<Self, EngineError> {
        let product = |(matrix, out)| match op.in_slices {
            true => Ok((tensors.matrix_in_slices(matrix)?, out)),
            false => Ok((tensors.matrix(matrix)?, out)),
        };
        Ok(Self { input: op.input, products: op.products.iter().map(product).collect::<Result<_, EngineError>>()?, add: op.add })
    }
}

impl Kernel for LinearKernel {
    fn run(&self, step: &mut Step) {
        let mut outs: Vec<Rows> = self.products.iter().map(|(_, out)| step.buffers.take(*out)).collect();
        let jobs = self.products.iter().zip(&mut outs).map(|((matrix, _), out)| (matrix.matrix(step.weights), out)).collect();
        step.kernels.linear(step.pool, step.scratch, step.buffers.rows(self.input), self.add, jobs);
        self.products.iter().zip(outs).for_each(|((_, id), out)| step.buffers.put(*id, out));
    }
}

pub struct EachHeadKernel {
    op: EachHead,
    stack: Mat,
}

impl EachHeadKernel {
    pub fn new(op: &EachHead, tensors: &Tensors) -> Result<Self, EngineError> {
        Ok(Self { op: *op, stack: tensors.matrix(op.stack)? })
    }
}

impl Kernel for EachHeadKernel {
    fn run(&self, step: &mut Step) {
        let (heads, weights) = (self.op.heads, step.weights);
        let mut out = step.buffers.take(self.op.out);
        let n = out.num_rows() / heads;
        let job = |head: usize| Job { matrix: self.stack.expert(weights, head, heads), rows: head * n..(head + 1) * n, out: 0 };
        let jobs: Vec<Job> = (0..heads).map(job).collect();
        step.kernels.products(step.pool, step.scratch, step.buffers.rows(self.op.input), false, &jobs, &mut [&mut out]);
        step.buffers.put(self.op.out, out);
    }
}
