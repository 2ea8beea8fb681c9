//! [`Run`]: runs the products and sums of a layer.

use super::simd::Kernels;
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Matrix, Rows, Scratch};
use model::Weights;

/// The resources that every operation of a layer needs.
pub struct Run<'a> {
    pub kernels: &'static Kernels,
    pub pool: &'a mut ThreadPool,
    pub scratch: &'a mut Scratch,
    pub weights: &'a Weights,
}

/// The residual stream, and a buffer for a branch's output.
pub struct Stream<'a> {
    pub x: &'a mut Rows,
    pub branch: &'a mut Rows,
}

/// The operations on a branch before it is added to the stream.
#[derive(Clone, Copy)]
pub struct Finish<'a> {
    pub bias: Option<&'a [f32]>,
    pub norm: Option<&'a Norm>,
    pub scale: f32,
}

impl Run<'_> {
    pub fn linear(&mut self, x: &Rows, accumulate: bool, jobs: Vec<(Matrix, &mut Rows)>) {
        self.kernels.linear(self.pool, self.scratch, x, accumulate, jobs);
    }

    /// out = norm(x)
    pub fn norm(&mut self, out: &mut Rows, x: &Rows, norm: &Norm) {
        out.resize(x.num_rows());
        let kernels = self.kernels;
        out.for_each(self.pool, |i, row| kernels.norm(row, x.row(i), norm));
    }

    /// x += finish(input · Wᵀ)
    pub fn branch(&mut self, (matrix, input): (Matrix, &Rows), stream: &mut Stream, finish: Finish) {
        let kernels = self.kernels;
        let direct = finish.norm.is_none() && finish.scale == 1.0;
        let out = if direct { &mut *stream.x } else { &mut *stream.branch };
        out.resize(input.num_rows());
        self.linear(input, direct, vec![(matrix, &mut *out)]);
        if let Some(bias) = finish.bias {
            out.for_each(self.pool, |_, row| kernels.add_to(row, bias));
        }
        if !direct {
            self.add(stream, finish);
        }
    }

    /// x += finish(branch), where the branch already includes its bias. The branch is overwritten.
    pub fn add(&mut self, stream: &mut Stream, finish: Finish) {
        let (kernels, Stream { x, branch }) = (self.kernels, stream);
        if let Some(norm) = finish.norm {
            branch.for_each(self.pool, |_, row| kernels.norm_in_place(row, norm));
        }
        if finish.scale != 1.0 {
            branch.for_each(self.pool, |_, row| row.iter_mut().for_each(|x| *x *= finish.scale));
        }
        x.for_each(self.pool, |i, row| kernels.add_to(row, branch.row(i)));
    }
}
