//! A model's tensors as the CPU kernels take them: matrices stay in the mapped file, vectors become float32.

use super::simd::norm::Norm;
use super::simd::{Kernels, rows::Matrix};
use crate::EngineError;
use model::{Experts, TensorSlot, Weight, Weights};

/// A weight matrix in the mapped file, or a padded float32 copy if its columns are no multiple of 32 (tiny models only).
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

    /// Matrix `i` of a stack of `count`.
    pub fn expert<'a>(&'a self, weights: &'a Weights, i: usize, count: usize) -> Matrix<'a> {
        let all = self.matrix(weights);
        let rows = all.rows / count;
        Matrix { bytes: &all.bytes[i * rows * all.row_bytes..][..rows * all.row_bytes], rows, ..all }
    }
}

/// One row of a tensor as float32.
pub fn dequantize_row(weights: &Weights, weight: &Weight, row: usize, out: &mut [f32]) {
    let bytes = weight.quant.row_bytes(weight.cols);
    (weight.quant.dequantize)(&weights.data(weight)[row * bytes..][..bytes], out);
}

pub struct Layer {
    pub attn_norm: Norm,
    pub qkv: [Mat; 3],
    pub qkv_bias: [Option<Vec<f32>>; 3],
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub attn_output: Mat,
    pub attn_output_bias: Option<Vec<f32>>,
    pub post_attn_norm: Option<Norm>,
    pub ffn_norm: Norm,
    pub ffn: FeedForward,
    pub post_ffn_norm: Option<Norm>,
}

/// The three matrices of a feed-forward layer.
pub struct Dense {
    /// None: the activation is applied to `up`.
    pub gate: Option<Mat>,
    pub up: Mat,
    pub down: Mat,
    pub gate_bias: Option<Vec<f32>>,
    pub up_bias: Option<Vec<f32>>,
    pub down_bias: Option<Vec<f32>>,
}

/// The experts' matrices in stacks, and the router that picks among them.
pub struct Routed {
    pub experts: Experts,
    pub router: Mat,
    pub gate: Mat,
    pub up: Mat,
    pub down: Mat,
    /// The expert that all rows share. Its router has one row.
    pub shared: Option<(Mat, Dense)>,
}

pub enum FeedForward {
    Dense(Box<Dense>),
    Routed(Box<Routed>),
}

/// All tensors of a model.
pub struct Tensors {
    pub weights: Weights,
    pub layers: Vec<Layer>,
    pub output_norm: Norm,
    pub output: Mat,
    pub token_embd: Weight,
    pub position_embd: Option<Weight>,
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
        self.weights.vector(slot, layer)
    }

    fn optional_norm(&self, slot: TensorSlot, bias: Option<TensorSlot>, layer: usize) -> Option<Norm> {
        let (kind, eps) = (self.weights.spec.arch.norm, self.weights.spec.norm_eps);
        let bias = bias.and_then(|bias| self.optional(bias, layer));
        self.optional(slot, layer).map(|weight| Norm { kind, weight, bias, eps })
    }

    fn norm(&self, slot: TensorSlot, bias: TensorSlot, layer: usize) -> Result<Norm, EngineError> {
        self.weight(slot, layer)?;
        self.optional_norm(slot, Some(bias), layer).ok_or_else(|| EngineError::Tensor(format!("{} is missing", slot.name(layer))))
    }

    fn layer(&self, i: usize) -> Result<Layer, EngineError> {
        use TensorSlot::*;
        Ok(Layer {
            attn_norm: self.norm(AttnNorm, AttnNormBias, i)?,
            qkv: [self.mat(AttnQ, i)?, self.mat(AttnK, i)?, self.mat(AttnV, i)?],
            qkv_bias: [AttnQBias, AttnKBias, AttnVBias].map(|slot| self.optional(slot, i)),
            q_norm: self.optional_norm(AttnQNorm, None, i),
            k_norm: self.optional_norm(AttnKNorm, None, i),
            attn_output: self.mat(AttnOutput, i)?,
            attn_output_bias: self.optional(AttnOutputBias, i),
            post_attn_norm: self.optional_norm(PostAttnNorm, None, i),
            ffn_norm: self.norm(FfnNorm, FfnNormBias, i)?,
            ffn: self.feed_forward(i)?,
            post_ffn_norm: self.optional_norm(PostFfnNorm, None, i),
        })
    }

    fn feed_forward(&self, i: usize) -> Result<FeedForward, EngineError> {
        use TensorSlot::*;
        let matrix = |slot| self.weights.get(slot, i).map(|weight| Mat::new(self.kernels, self.weights, weight)).transpose();
        let (Some(experts), Some(router)) = (self.weights.spec.experts, matrix(FfnRouter)?) else {
            let [gate_bias, up_bias, down_bias] = [FfnGateBias, FfnUpBias, FfnDownBias].map(|slot| self.optional(slot, i));
            let (gate, up, down) = (matrix(FfnGate)?, self.mat(FfnUp, i)?, self.mat(FfnDown, i)?);
            return Ok(FeedForward::Dense(Box::new(Dense { gate, up, down, gate_bias, up_bias, down_bias })));
        };
        let shared = match matrix(SharedRouter)? {
            None => None,
            Some(router) => {
                let (gate, up, down) = (matrix(FfnGateShexp)?, self.mat(FfnUpShexp, i)?, self.mat(FfnDownShexp, i)?);
                Some((router, Dense { gate, up, down, gate_bias: None, up_bias: None, down_bias: None }))
            }
        };
        let [gate, up, down] = [FfnGateExps, FfnUpExps, FfnDownExps].map(|slot| self.mat(slot, i));
        Ok(FeedForward::Routed(Box::new(Routed { experts, router, gate: gate?, up: up?, down: down?, shared })))
    }
}

impl Tensors {
    pub fn load(kernels: &Kernels, weights: Weights) -> Result<Self, EngineError> {
        let loader = Loader { kernels, weights: &weights };
        let layers = (0..weights.spec.num_layers).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
        let output_norm = loader.norm(TensorSlot::OutputNorm, TensorSlot::OutputNormBias, 0)?;
        let token_embd = *loader.weight(TensorSlot::TokenEmbd, 0)?;
        // tied embeddings: the head is the embedding's matrix
        let head = weights.get(TensorSlot::Output, 0).unwrap_or(&token_embd);
        let output = Mat::new(kernels, &weights, head)?;
        let position_embd = weights.get(TensorSlot::PositionEmbd, 0).copied();
        Ok(Self { weights, layers, output_norm, output, token_embd, position_embd })
    }
}
