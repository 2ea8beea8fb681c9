//! A model's tensors as the CPU kernels take them: matrices stay in the file's map, vectors become float32.

use super::simd::{Kernels, rows::Matrix};
use crate::engine::EngineError;
use crate::model::{TensorSlot, Weight, Weights};

/// A weight matrix in the map, or a float32 copy where its columns are no multiple of 32 (tiny models only).
pub struct Mat {
    weight: Weight,
    kernel: super::simd::linear::LinearFn,
    padded: Option<Vec<u8>>,
}

impl Mat {
    fn new(kernels: &Kernels, weights: &Weights, weight: &Weight) -> Result<Self, EngineError> {
        let whole = weight.cols.is_multiple_of(32);
        let id = if whole { weight.quant.id } else { 0 };
        let kernel = (kernels.linear_of)(id)
            .ok_or_else(|| EngineError::Unsupported(format!("type {} on the CPU ({})", weight.quant.name, kernels.name)))?;
        let padded = (!whole).then(|| {
            let mut bytes = Vec::with_capacity(weight.rows * weight.cols.next_multiple_of(32) * 4);
            let mut row = vec![0f32; weight.cols.next_multiple_of(32)];
            for r in 0..weight.rows {
                dequantize_row(weights, weight, r, &mut row[..weight.cols]);
                row.iter().for_each(|x| bytes.extend_from_slice(&x.to_le_bytes()));
            }
            bytes
        });
        Ok(Self { weight: *weight, kernel, padded })
    }

    pub fn matrix<'a>(&'a self, weights: &'a Weights) -> Matrix<'a> {
        let cols = self.weight.cols.next_multiple_of(32);
        let (bytes, row_bytes) = match &self.padded {
            Some(bytes) => (bytes.as_slice(), cols * 4),
            None => (weights.data(&self.weight), self.weight.quant.row_bytes(cols)),
        };
        Matrix { bytes, kernel: self.kernel, row_bytes, rows: self.weight.rows, cols }
    }
}

/// One row of a tensor as float32.
pub fn dequantize_row(weights: &Weights, weight: &Weight, row: usize, out: &mut [f32]) {
    let bytes = weight.quant.row_bytes(weight.cols);
    (weight.quant.dequantize)(&weights.data(weight)[row * bytes..][..bytes], out);
}

pub struct Layer {
    pub attn_norm: Vec<f32>,
    pub qkv: [Mat; 3],
    pub qkv_bias: [Option<Vec<f32>>; 3],
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub attn_output: Mat,
    pub post_attn_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    pub ffn_gate: Mat,
    pub ffn_up: Mat,
    pub ffn_down: Mat,
    pub post_ffn_norm: Option<Vec<f32>>,
}

/// All tensors of a model.
pub struct Tensors {
    pub weights: Weights,
    pub layers: Vec<Layer>,
    pub output_norm: Vec<f32>,
    pub output: Mat,
    pub token_embd: Weight,
    pub rope_freqs: Option<Vec<f32>>,
}

struct Loader<'a> {
    kernels: &'a Kernels,
    weights: &'a Weights,
}

impl Loader<'_> {
    fn weight(&self, slot: TensorSlot, layer: usize) -> Result<&Weight, EngineError> {
        self.weights.get(slot, layer).ok_or_else(|| EngineError::Tensor(format!("{} is missing", slot.name(layer))))
    }

    fn mat(&self, slot: TensorSlot, layer: usize) -> Result<Mat, EngineError> {
        Mat::new(self.kernels, self.weights, self.weight(slot, layer)?)
    }

    fn optional(&self, slot: TensorSlot, layer: usize) -> Option<Vec<f32>> {
        self.weights.get(slot, layer).map(|weight| {
            let mut out = vec![0f32; weight.rows * weight.cols];
            (weight.quant.dequantize)(self.weights.data(weight), &mut out);
            out
        })
    }

    fn vector(&self, slot: TensorSlot, layer: usize) -> Result<Vec<f32>, EngineError> {
        self.weight(slot, layer)?;
        Ok(self.optional(slot, layer).unwrap_or_default())
    }

    fn layer(&self, i: usize) -> Result<Layer, EngineError> {
        use TensorSlot::*;
        Ok(Layer {
            attn_norm: self.vector(AttnNorm, i)?,
            qkv: [self.mat(AttnQ, i)?, self.mat(AttnK, i)?, self.mat(AttnV, i)?],
            qkv_bias: [AttnQBias, AttnKBias, AttnVBias].map(|slot| self.optional(slot, i)),
            q_norm: self.optional(AttnQNorm, i),
            k_norm: self.optional(AttnKNorm, i),
            attn_output: self.mat(AttnOutput, i)?,
            post_attn_norm: self.optional(PostAttnNorm, i),
            ffn_norm: self.vector(FfnNorm, i)?,
            ffn_gate: self.mat(FfnGate, i)?,
            ffn_up: self.mat(FfnUp, i)?,
            ffn_down: self.mat(FfnDown, i)?,
            post_ffn_norm: self.optional(PostFfnNorm, i),
        })
    }
}

impl Tensors {
    pub fn load(kernels: &Kernels, weights: Weights) -> Result<Self, EngineError> {
        let loader = Loader { kernels, weights: &weights };
        let layers = (0..weights.spec.num_layers).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let output_norm = loader.vector(TensorSlot::OutputNorm, 0)?;
        let token_embd = *loader.weight(TensorSlot::TokenEmbd, 0)?;
        // tied embeddings: the head is the embedding's matrix
        let head = weights.get(TensorSlot::Output, 0).unwrap_or(&token_embd);
        let output = Mat::new(kernels, &weights, head)?;
        let rope_freqs = loader.optional(TensorSlot::RopeFreqs, 0);
        Ok(Self { weights, layers, output_norm, output, token_embd, rope_freqs })
    }
}
