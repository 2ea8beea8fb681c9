//! Loads the tensors of a program in the forms that kernels take: matrices stay in the mapped file, and vectors become float32.

use super::super::matrix::Mat;
use super::super::simd::Kernels;
use super::super::simd::norm::Norm;
use crate::EngineError;
use crate::program::{NormParams, Program, Source, TensorId};
use model::{Weight, Weights};

/// The tensors of a program, in the forms that kernels take.
pub struct Tensors<'a> {
    pub program: &'a Program,
    pub kernels: &'a Kernels,
    pub weights: &'a Weights,
}

impl Tensors<'_> {
    /// The weights of a table or matrix in the file.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] if the file does not have it.
    pub fn weight(&self, id: TensorId) -> Result<Weight, EngineError> {
        self.program.tensor(id).required_weight(self.weights)
    }

    /// A matrix, or a stack of matrices.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a tensor type that the kernels do not know.
    pub fn matrix(&self, id: TensorId) -> Result<Mat, EngineError> {
        let (weight, tensor) = (self.weight(id)?, self.program.tensor(id));
        let matrix = match tensor.source {
            Source::LatentKeys(_) | Source::Transposed(_) => Mat::transposed(self.kernels, self.weights, &weight),
            _ => Mat::new(self.kernels, self.weights, &weight),
        };
        Ok(matrix?.with_scales_of(tensor))
    }

    /// A matrix whose sums shards share.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a tensor type that the kernels do not know or cannot cut so.
    pub fn matrix_in_slices(&self, id: TensorId) -> Result<Mat, EngineError> {
        let named = |error| match error {
            EngineError::Unsupported(why) => EngineError::Unsupported(format!("tensor {}: {why}", self.program.tensor(id).name)),
            other => other,
        };
        Mat::in_slices(self.kernels, self.weights, &self.weight(id)?, self.program.scope.shard).map_err(named)
    }

    pub fn vector(&self, id: TensorId) -> Vec<f32> {
        self.program.tensor(id).vector(self.weights)
    }

    pub fn optional(&self, id: Option<TensorId>) -> Option<Vec<f32>> {
        id.map(|id| self.vector(id))
    }

    /// A norm of `len` elements.
    pub fn norm(&self, params: &NormParams, len: usize) -> Norm {
        let weight = self.optional(params.weight).unwrap_or_else(|| vec![1.0; len]);
        Norm { kind: params.kind, weight, bias: self.optional(params.bias), eps: params.eps }
    }

    /// The norms of `len` elements each that lie one after another in the same tensors.
    pub fn norms(&self, params: &NormParams, len: usize) -> Vec<Norm> {
        let Norm { kind, weight, bias, eps } = self.norm(params, len);
        let part = |i: usize, all: &[f32]| all[i * len..][..len].to_vec();
        let norm = |i: usize| Norm { kind, weight: part(i, &weight), bias: bias.as_deref().map(|bias| part(i, bias)), eps };
        (0..weight.len() / len.max(1)).map(norm).collect()
    }
}
