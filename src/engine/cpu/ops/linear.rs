//! Multiplies rows with matrices.

use super::super::matrix::Mat;
use super::super::simd::rows::{Job, Rows};
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::EngineError;
use crate::program::{BufferId, EachHead, Linear, TensorId};

pub struct LinearKernel {
    input: BufferId,
    products: Vec<(Mat, BufferId)>,
    /// The tensor of each product.
    tensors: Vec<TensorId>,
    add: bool,
}

impl LinearKernel {
    pub fn new(op: &Linear, tensors: &Tensors) -> Result<Self, EngineError> {
        let product = |(matrix, out)| match op.in_slices {
            true => Ok((tensors.matrix_in_slices(matrix)?, out)),
            false => Ok((tensors.matrix(matrix)?, out)),
        };
        let products = op.products.iter().map(product).collect::<Result<_, EngineError>>()?;
        Ok(Self { input: op.input, products, tensors: op.products.iter().map(|(matrix, _)| matrix).collect(), add: op.add })
    }
}

impl Kernel for LinearKernel {
    fn run(&self, step: &mut Step) {
        let mut outs: Vec<Rows> = self.products.iter().map(|(_, out)| step.buffers.take(*out)).collect();
        if step.adapted.is_empty() {
            let jobs = self.products.iter().zip(&mut outs).map(|((matrix, _), out)| (matrix.matrix(step.weights), out)).collect();
            step.kernels.linear(step.pool, step.scratch, step.buffers.rows(self.input), self.add, jobs);
        } else {
            self.run_adapted(step, &mut outs);
        }
        self.products.iter().zip(outs).for_each(|((_, id), out)| step.buffers.put(*id, out));
    }
}

impl LinearKernel {
    /// Computes the products with the changes of the step's adapters.
    fn run_adapted(&self, step: &mut Step, outs: &mut [Rows]) {
        let (adapters, adapted, input) = (step.adapters, step.adapted, step.buffers.rows(self.input));
        // what a product is added to is put aside where a change needs the product alone
        let mut aside = Vec::new();
        for (k, out) in outs.iter_mut().enumerate().filter(|_| self.add) {
            for row in adapted.changed().iter().filter(|row| adapters.needs_product(self.tensors[k], row.uses)) {
                aside.push((k, row.at, out.row(row.at).to_vec()));
                out.row_mut(row.at).fill(0.0);
            }
        }
        let jobs = self.products.iter().zip(&mut *outs).map(|((matrix, _), out)| (matrix.matrix(step.weights), out)).collect();
        step.kernels.linear(step.pool, step.scratch, input, self.add, jobs);
        for (&tensor, out) in self.tensors.iter().zip(&mut *outs).filter(|(tensor, _)| !adapters.is_unchanged(**tensor, adapted)) {
            adapters.change((step.kernels, step.pool), tensor, &adapted.changed(), (input, out));
        }
        for (k, row, before) in aside {
            step.kernels.add_to(outs[k].row_mut(row), &before);
        }
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
