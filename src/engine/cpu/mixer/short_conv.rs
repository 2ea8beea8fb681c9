//! Runs LFM2's mixer: a convolution over a few rows between two gates (Liquid AI 2025, "LFM2").
//!
//! b, c, x = in(h) [hidden each]; y = c · convolution(b · x). The state of a sequence is b · x of its last rows.

use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::rows::Rows;
use super::convolution::{Columns, Convolution};
use super::step::Step;
use crate::EngineError;
use model::{Ssm, TensorRole};

pub struct ShortConvLayer {
    layer: usize,
    /// The number of channels: the width of the model's rows.
    width: usize,
    input: Mat, // [3 * width, hidden] b, c and x
    convolution: Convolution,
}

/// The activations of a step.
#[derive(Default)]
pub struct ShortConvBuffers {
    wide: Rows, // [num_tokens, 3 * width] b, c and x
    bx: Rows,   // [num_tokens, width]
}

impl ShortConvLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Ssm) -> Result<Self, EngineError> {
        let convolution = Convolution::load(loader, layer, (TensorRole::ShortConv, None), spec.conv, false)?;
        Ok(Self { layer, width: spec.inner, input: loader.mat(TensorRole::ShortConvIn, layer)?, convolution })
    }

    /// Computes the output before its projection, out = [num_tokens, width].
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut ShortConvBuffers, &mut Rows)) {
        let (n, width, kernels) = (h.num_rows(), self.width, run.kernels);
        b.wide.reshape(n, 3 * width);
        run.linear(h, false, vec![(self.input.matrix(run.weights), &mut b.wide)]);
        b.bx.reshape(n, width);
        b.bx.for_each(run.pool, |i, row| {
            row.fill(0.0);
            let wide = b.wide.row(i);
            kernels.multiply_add(row, &wide[..width], &wide[2 * width..]);
        });
        out.reshape(n, width);
        let mut states = step.state.layer_of(&step.batch.state_slots, self.layer);
        self.convolution.run(run, step.sequences, &mut states, Columns { input: &b.bx, from: 0, output: out, to: 0 });
        out.for_each(run.pool, |i, row| row.iter_mut().zip(&b.wide.row(i)[width..]).for_each(|(x, c)| *x *= c));
    }
}
