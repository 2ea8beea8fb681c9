//! [`Mat`]: a weight matrix as the kernels take it, in the mapped file.

use super::simd::Kernels;
use super::simd::linear::Kernel;
use super::simd::rows::Matrix;
use crate::EngineError;
use model::{Weight, Weights};

/// A weight matrix in the mapped file. A padded float32 copy if the number of columns is not a multiple of 32 (tiny models only).
pub struct Mat {
    weight: Weight,
    kernel: Kernel,
    padded: Option<Vec<u8>>,
    /// The factors of the products: one, or one per matrix of a stack. Empty if there are none.
    scales: Vec<f32>,
}

impl Mat {
    pub fn new(kernels: &Kernels, weights: &Weights, weight: &Weight) -> Result<Self, EngineError> {
        let whole = weight.cols.is_multiple_of(32);
        let id = if whole { weight.quant.id } else { 0 };
        let kernel = (kernels.linear_of)(id)
            .ok_or_else(|| EngineError::Unsupported(format!("type {} on the CPU ({})", weight.quant.name, kernels.name)))?;
        let padded = (!whole).then(|| {
            let mut bytes = Vec::with_capacity(weight.rows * weight.cols.next_multiple_of(32) * 4);
            let mut row = vec![0f32; weight.cols.next_multiple_of(32)];
            for part in weights.parts(weight) {
                for r in 0..part.rows {
                    dequantize_row(weights, &part, r, &mut row[..weight.cols]);
                    row.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
                }
            }
            bytes
        });
        Ok(Self { weight: *weight, kernel, padded, scales: weights.scales(weight) })
    }

    /// The transposes of a stack's matrices, as float32.
    pub fn transposed(kernels: &Kernels, weights: &Weights, stack: &Weight) -> Result<Self, EngineError> {
        let kernel = (kernels.linear_of)(0).ok_or_else(|| EngineError::Unsupported(format!("type F32 on the CPU ({})", kernels.name)))?;
        let count = stack.stack.map_or(1, |stack| stack.count);
        let (rows, cols) = (stack.cols, stack.rows / count);
        let padded_cols = cols.next_multiple_of(32);
        let mut bytes = vec![0; count * rows * padded_cols * 4];
        let mut row = vec![0f32; stack.cols];
        for (part, matrix) in weights.parts(stack).zip(bytes.chunks_exact_mut((rows * padded_cols * 4).max(1))) {
            for c in 0..cols {
                dequantize_row(weights, &part, c, &mut row);
                for (r, x) in row.iter().enumerate() {
                    matrix[(r * padded_cols + c) * 4..][..4].copy_from_slice(&x.to_le_bytes());
                }
            }
        }
        let weight = Weight { rows: count * rows, cols, stack: None, ..*stack };
        Ok(Self { weight, kernel, padded: Some(bytes), scales: weights.scales(stack) })
    }

    /// The whole matrix. Its rows must be contiguous: stacks whose parts lie apart are used part by part.
    pub fn matrix<'a>(&'a self, weights: &'a Weights) -> Matrix<'a> {
        self.expert(weights, 0, 1)
    }

    /// Matrix `i` of a stack of `count`.
    pub fn expert<'a>(&'a self, weights: &'a Weights, i: usize, count: usize) -> Matrix<'a> {
        let (cols, rows) = (self.weight.cols.next_multiple_of(32), self.weight.rows / count);
        let (bytes, row_bytes) = match &self.padded {
            Some(bytes) => (&bytes[i * rows * cols * 4..][..rows * cols * 4], cols * 4),
            None => (weights.data(&weights.part(&self.weight, i, count)), self.weight.quant.row_bytes(cols)),
        };
        let scale = self.scales.get(i).or(self.scales.first()).copied().unwrap_or(1.0);
        Matrix { bytes, kernel: self.kernel, row_bytes, rows, cols, scale }
    }
}

/// Dequantises one row of a tensor to float32.
pub fn dequantize_row(weights: &Weights, weight: &Weight, row: usize, out: &mut [f32]) {
    let bytes = weight.quant.row_bytes(weight.cols);
    (weight.quant.dequantize)(&weights.data(weight)[row * bytes..][..bytes], out);
}
