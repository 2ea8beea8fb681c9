//! [`Tensors`]: the tensors of a model and its layers, ready for the forward pass.

use super::altup::{Altup, AltupLayer};
use super::feed_forward::FeedForward;
use super::loader::{Loader, Mat};
use super::mixer::Mixer;
use super::per_layer::{PerLayer, PerLayerInputs};
use super::simd::Kernels;
use super::simd::norm::Norm;
use crate::EngineError;
use model::arch::Beside;
use model::{TensorRole, Weight, Weights};

pub struct Layer {
    pub altup: Option<AltupLayer>,
    pub attn_norm: Option<Norm>,
    /// The mixers, which all read the same input. Their outputs are added.
    pub mixers: Vec<Mixer>,
    pub post_attn_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    /// The norm of the experts' input, if that is the layer's input instead of the feed-forward part's.
    pub experts_norm: Option<Norm>,
    pub ffn: Option<FeedForward>,
    pub post_ffn_norm: Option<Norm>,
    pub per_layer: Option<PerLayer>,
    /// The factor of the stream after the layer.
    pub output_scale: Option<f32>,
}

/// All tensors of a model.
pub struct Tensors {
    pub weights: Weights,
    pub layers: Vec<Layer>,
    pub altup: Option<Altup>,
    pub per_layer: Option<PerLayerInputs>,
    pub output_norm: Option<Norm>,
    pub output: Mat,
    pub output_bias: Option<Vec<f32>>,
    pub token_embd: Weight,
    pub token_norm: Option<Norm>,
    /// The embeddings of all token types, one after another.
    pub token_types: Option<Vec<f32>>,
    pub position_embd: Option<Weight>,
    pub classifier: Option<Classifier>,
}

/// The classifier that scores a row: output(tanh(dense(x))), or output(x) without a dense layer.
pub struct Classifier {
    pub dense: Option<(Mat, Option<Vec<f32>>)>,
    pub output: Mat,
    pub output_bias: Option<Vec<f32>>,
}

impl Classifier {
    fn load(loader: Loader) -> Result<Option<Self>, EngineError> {
        use TensorRole::*;
        let Some(output) = loader.optional_mat(ClassifierOutput, 0)? else { return Ok(None) };
        let dense = loader.optional_mat(Classifier, 0)?.map(|dense| (dense, loader.optional(ClassifierBias, 0)));
        Ok(Some(Self { dense, output, output_bias: loader.optional(ClassifierOutputBias, 0) }))
    }
}

fn layer(loader: Loader, i: usize, ropes: &[Option<usize>]) -> Result<Layer, EngineError> {
    use TensorRole::*;
    // Other architectures whose experts have norms of their own apply them after attention.
    let early_experts = loader.weights.spec.arch.experts.beside == Beside::Residual;
    Ok(Layer {
        altup: AltupLayer::load(loader, i)?,
        attn_norm: loader.norm(AttnNorm, AttnNormBias, i),
        mixers: Mixer::load(loader, i, ropes)?,
        post_attn_norm: loader.weights.get(PostAttnNorm, i).and_then(|_| loader.norm(PostAttnNorm, PostAttnNormBias, i)),
        ffn_norm: loader.norm(FfnNorm, FfnNormBias, i),
        experts_norm: loader.weights.get(FfnNormExps, i).filter(|_| early_experts).and_then(|_| loader.norm(FfnNormExps, FfnNormBias, i)),
        ffn: FeedForward::load(loader, i)?,
        post_ffn_norm: loader.weights.get(PostFfnNorm, i).and_then(|_| loader.norm(PostFfnNorm, PostFfnNormBias, i)),
        per_layer: PerLayer::load(loader, i)?,
        output_scale: loader.optional(LayerOutputScale, i).and_then(|scale| scale.first().copied()),
    })
}

impl Tensors {
    /// Loads the tensors. `ropes` holds the index of each layer's rotation.
    pub fn load(kernels: &Kernels, weights: Weights, ropes: &[Option<usize>]) -> Result<Self, EngineError> {
        let loader = Loader { kernels, weights: &weights };
        let spec = &weights.spec;
        let layers = (0..spec.num_layers()).map(|i| layer(loader, i, ropes)).collect::<Result<_, _>>()?;
        let output_norm = loader.norm(TensorRole::OutputNorm, TensorRole::OutputNormBias, 0);
        let token_embd = *loader.weight(TensorRole::TokenEmbd, 0)?;
        // tied embeddings: the head is the embedding's matrix
        let head = weights.get(TensorRole::Output, 0).unwrap_or(&token_embd);
        let output = Mat::new(kernels, &weights, head)?;
        let output_bias = loader.optional(TensorRole::OutputBias, 0);
        let has_token_norm = weights.get(TensorRole::TokenNorm, 0).is_some();
        let token_norm = if has_token_norm { loader.norm(TensorRole::TokenNorm, TensorRole::TokenNormBias, 0) } else { None };
        let token_types = loader.optional(TensorRole::TokenTypes, 0);
        let position_embd = weights.get(TensorRole::PositionEmbd, 0).copied();
        let classifier = Classifier::load(loader)?;
        let (altup, per_layer) = (Altup::load(loader)?, PerLayerInputs::load(loader)?);
        Ok(Self {
            layers,
            altup,
            per_layer,
            output_norm,
            output,
            output_bias,
            token_embd,
            token_norm,
            token_types,
            position_embd,
            classifier,
            weights,
        })
    }
}
