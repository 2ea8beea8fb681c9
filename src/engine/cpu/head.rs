//! [`Head`]: what follows the last layer.

use super::adapters::{Adapters, ChangedRow};
use super::matrix::Mat;
use super::ops::Tensors;
use super::run::Run;
use super::simd::Kernels;
use super::simd::norm::Norm;
use super::simd::pool::ThreadPool;
use super::simd::rows::{Rows, Scratch};
use crate::EngineError;
use crate::program::{self, Span};
use model::{ModelSpec, Weights};

pub struct Head {
    pub norm: Option<Norm>,
    /// The ids whose logits the output gives.
    pub vocab: Span,
    pub output: Dense,
    pub classifier: Option<Classifier>,
}

/// A matrix with its bias.
pub struct Dense {
    matrix: Mat,
    bias: Option<Vec<f32>>,
}

/// The classifier that scores a row: output(tanh(dense(x))), or output(x) without a dense layer.
pub struct Classifier {
    pub dense: Option<Dense>,
    pub output: Dense,
}

impl Head {
    pub fn load(head: &program::Head, tensors: &Tensors) -> Result<Self, EngineError> {
        let dense =
            |(matrix, bias)| -> Result<Dense, EngineError> { Ok(Dense { matrix: tensors.matrix(matrix)?, bias: tensors.optional(bias) }) };
        let classifier = head.classifier.map(|classifier| -> Result<_, EngineError> {
            Ok(Classifier { dense: classifier.dense.map(dense).transpose()?, output: dense(classifier.output)? })
        });
        let norm = head.norm.map(|norm| tensors.norm(&norm, tensors.weights.spec.hidden_dim));
        Ok(Self { norm, vocab: head.vocab, output: dense((head.matrix, head.bias))?, classifier: classifier.transpose()? })
    }
}

/// cap · tanh(scale · logits / cap), for each row.
pub fn finish_logits(spec: &ModelSpec, kernels: &Kernels, pool: &mut ThreadPool, logits: &mut Rows) {
    if spec.logit_scale != 1.0 {
        logits.for_each(pool, |_, row| row.iter_mut().for_each(|x| *x *= spec.logit_scale));
    }
    if let Some(cap) = spec.final_soft_cap {
        logits.for_each(pool, |_, row| kernels.cap(row, cap));
    }
}

impl Dense {
    /// out = x · Wᵀ + bias, with the changes of adapters.
    pub fn run_adapted(&self, run: &mut Run, (adapters, rows): (&Adapters, &[ChangedRow]), (x, out): (&Rows, &mut Rows)) {
        run.kernels.linear(run.pool, run.scratch, x, false, vec![(self.matrix.matrix(run.weights), &mut *out)]);
        adapters.change_head((run.kernels, run.pool), rows, (x, out));
        self.add_bias(run.kernels, run.pool, out);
    }

    /// out = x · Wᵀ + bias
    pub fn run(&self, (kernels, weights): (&Kernels, &Weights), pool: &mut ThreadPool, scratch: &mut Scratch, x: &Rows, out: &mut Rows) {
        kernels.linear(pool, scratch, x, false, vec![(self.matrix.matrix(weights), &mut *out)]);
        self.add_bias(kernels, pool, out);
    }

    fn add_bias(&self, kernels: &Kernels, pool: &mut ThreadPool, out: &mut Rows) {
        if let Some(bias) = &self.bias {
            out.for_each(pool, |_, row| kernels.add_to(row, bias));
        }
    }
}
