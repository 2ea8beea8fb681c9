//! A layer's products and sums, with what they need.

use super::simd::Kernels;
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Matrix, Rows, Scratch};
use model::Weights;

/// What every operation of a layer needs.
pub struct Run<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut ThreadPool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
}

impl Run<'_> {
    pub fn linear(&mut self, x: &Rows, accumulate: bool, jobs: Vec<(Matrix, &mut Rows)>) {
        self.kernels.linear(self.pool, self.scratch, x, accumulate, jobs);
    }

    /// x += input · Wᵀ + bias. If the layer has a norm behind the branch, the branch is normalised before it is added.
    pub fn branch(
        &mut self,
        (matrix, input): (Matrix, &Rows),
        (x, h): (&mut Rows, &mut Rows),
        (bias, norm): (Option<&[f32]>, &Option<Norm>),
    ) {
        let out = if norm.is_some() { &mut *h } else { &mut *x };
        self.linear(input, norm.is_none(), vec![(matrix, &mut *out)]);
        let kernels = self.kernels;
        if let Some(bias) = bias {
            out.for_each(self.pool, |_, row| kernels.add_to(row, bias));
        }
        if norm.is_some() {
            self.add((x, h), norm);
        }
    }

    /// x += norm(h). `h` is overwritten by norm(h).
    pub fn add(&mut self, (x, h): (&mut Rows, &mut Rows), norm: &Option<Norm>) {
        let kernels = self.kernels;
        if let Some(norm) = norm {
            h.for_each(self.pool, |_, row| kernels.norm_in_place(row, norm));
        }
        x.for_each(self.pool, |i, row| kernels.add_to(row, h.row(i)));
    }
}
