//! [`Mat`]: a weight matrix as the kernels take it, in the mapped file.

use super::simd::Kernels;
use super::simd::fixed_block::FIXED_BLOCK;
use super::simd::linear::Kernel;
use super::simd::rows::Matrix;
use crate::EngineError;
use crate::program::tensor::Tensor;
use crate::program::{Shard, Slices};
use model::{Weight, Weights};

/// The shortest slice of a sum over `cols` columns. Adding up the lanes of a slice takes as many instructions as about 50 of its columns
/// with AVX2, which the products of small models would feel: they have fewer slices.
fn least_slice(cols: usize) -> usize {
    if cols < 4096 { 1024 } else { 512 }
}

/// A weight matrix in the mapped file, or some of its columns. A padded float32 copy if the number of columns is not a multiple of 32 (tiny
/// models only).
pub struct Mat {
    weight: Weight,
    kernel: Kernel,
    /// The first column.
    first: usize,
    slices: Slices,
    padded: Option<Vec<u8>>,
    /// The factors of the products: one, or one per matrix of a stack. Empty if there are none.
    scales: Vec<f32>,
}

impl Mat {
    /// A matrix whose products are summed in one slice.
    pub fn new(kernels: &Kernels, weights: &Weights, weight: &Weight) -> Result<Self, EngineError> {
        let (kernel, cols) = (kernel_of(kernels, weight)?, weight.cols.next_multiple_of(32));
        Ok(Self::of_columns(weights, weight, kernel, (0, Slices::one(cols))))
    }

    /// The columns of a shard, in the slices of the whole matrix.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for a tensor type that the kernels do not know, or whose columns they cannot cut so.
    pub fn in_slices(kernels: &Kernels, weights: &Weights, weight: &Weight, shard: Shard) -> Result<Self, EngineError> {
        let kernel = kernel_of(kernels, weight)?;
        let unit = if kernel.split.is_some() { FIXED_BLOCK } else { weight.quant.block_size };
        let all = Slices::of(weight.cols.next_multiple_of(32), unit, least_slice(weight.cols));
        match all.of_shard(shard) {
            Some((slices, columns)) => Ok(Self::of_columns(weights, weight, kernel, (columns.first, slices))),
            None => {
                let (quant, cols, have, count) = (weight.quant.name, weight.cols, all.ends().len(), shard.count);
                let why = format!("the CPU ({}) cuts {cols} columns of {quant} into {have} slices at most", kernels.name);
                Err(EngineError::Unsupported(format!("{why}, and there are {count} shards")))
            }
        }
    }

    fn of_columns(weights: &Weights, weight: &Weight, kernel: Kernel, (first, slices): (usize, Slices)) -> Self {
        let padded = (!weight.cols.is_multiple_of(32)).then(|| {
            let cols = slices.cols();
            let mut bytes = Vec::with_capacity(weight.rows * cols * 4);
            let mut row = vec![0f32; weight.cols.next_multiple_of(32)];
            for part in weights.parts(weight) {
                for r in 0..part.rows {
                    dequantize_row(weights, &part, r, &mut row[..weight.cols]);
                    row[first..][..cols].iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
                }
            }
            bytes
        });
        Self { weight: *weight, kernel, first, slices, padded, scales: weights.scales(weight) }
    }

    /// Keeps the factors of a tensor's own matrices, of those of a whole stack.
    pub fn with_scales_of(mut self, tensor: &Tensor) -> Self {
        self.scales = tensor.own_scales(self.scales);
        self
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
        let slices = Slices::one(padded_cols);
        Ok(Self { weight, kernel, first: 0, slices, padded: Some(bytes), scales: weights.scales(stack) })
    }

    /// The whole matrix. Its rows must be contiguous: stacks whose parts lie apart are used part by part.
    pub fn matrix<'a>(&'a self, weights: &'a Weights) -> Matrix<'a> {
        self.expert(weights, 0, 1)
    }

    /// Matrix `i` of a stack of `count`.
    pub fn expert<'a>(&'a self, weights: &'a Weights, i: usize, count: usize) -> Matrix<'a> {
        let (cols, rows, quant) = (self.slices.cols(), self.weight.rows / count, self.weight.quant);
        let (bytes, row_bytes, own_bytes) = match &self.padded {
            Some(bytes) => (&bytes[i * rows * cols * 4..][..rows * cols * 4], cols * 4, cols * 4),
            None => {
                let all = weights.data(&weights.part(&self.weight, i, count));
                (&all[quant.row_bytes(self.first)..], quant.row_bytes(self.weight.cols), quant.row_bytes(cols))
            }
        };
        let scale = self.scales.get(i).or(self.scales.first()).copied().unwrap_or(1.0);
        Matrix { bytes, kernel: self.kernel, row_bytes, own_bytes, rows, cols, slices: self.slices, scale }
    }
}

/// The kernel of a matrix.
fn kernel_of(kernels: &Kernels, weight: &Weight) -> Result<Kernel, EngineError> {
    let id = if weight.cols.is_multiple_of(32) { weight.quant.id } else { 0 };
    (kernels.linear_of)(id).ok_or_else(|| EngineError::Unsupported(format!("type {} on the CPU ({})", weight.quant.name, kernels.name)))
}

/// Dequantises one row of a tensor to float32.
pub fn dequantize_row(weights: &Weights, weight: &Weight, row: usize, out: &mut [f32]) {
    let bytes = weight.quant.row_bytes(weight.cols);
    (weight.quant.dequantize)(&weights.data(weight)[row * bytes..][..bytes], out);
}
