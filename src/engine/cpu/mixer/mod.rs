//! Runs a layer's mixers. A mixer lets a row see other rows of its sequence.

mod attention;
mod convolution;
mod delta;
mod latent;
mod lightning;
mod mamba;
mod short_conv;
mod step;

use super::loader::{Loader, Mat};
use super::run::Run;
use super::simd::rows::Rows;
use crate::EngineError;
use attention::AttentionLayer;
use delta::DeltaLayer;
use latent::LatentLayer;
use lightning::LightningLayer;
use mamba::MambaLayer;
use model::arch::Recurrent;
use model::{LayerSpec, Mixer as MixerSpec, Ssm, TensorRole};
use short_conv::ShortConvLayer;
pub use step::Step;

/// A mixer and the projection of its output.
pub struct Mixer {
    kind: Kind,
    pub output: Mat,
    pub output_bias: Option<Vec<f32>>,
}

enum Kind {
    Attention(Box<AttentionLayer>),
    Mamba(Box<MambaLayer>),
    Delta(Box<DeltaLayer>),
    ShortConv(Box<ShortConvLayer>),
    Lightning(Box<LightningLayer>),
    Latent(Box<LatentLayer>),
}

/// The activations of the mixers.
#[derive(Default)]
pub struct MixerBuffers {
    attention: attention::AttentionBuffers,
    mamba: mamba::MambaBuffers,
    delta: delta::DeltaBuffers,
    short_conv: short_conv::ShortConvBuffers,
    lightning: lightning::LightningBuffers,
    latent: latent::LatentBuffers,
    /// The mixer's output before its output projection.
    pub mixed: Rows,
}

impl Mixer {
    /// Loads the mixers of a layer, which all read the same input. `ropes` holds the index of each layer's rotation.
    pub fn load(loader: Loader, layer: usize, ropes: &[Option<usize>]) -> Result<Vec<Self>, EngineError> {
        let spec: &LayerSpec = &loader.weights.spec.layers[layer];
        let with = |kind, output, bias: Option<TensorRole>| -> Result<Self, EngineError> {
            let output_bias = bias.and_then(|bias| loader.optional(bias, layer));
            Ok(Self { kind, output: loader.mat(output, layer)?, output_bias })
        };
        let attention = |spec| -> Result<Self, EngineError> {
            let attention = AttentionLayer::load(loader, layer, spec, ropes[layer])?;
            with(Kind::Attention(Box::new(attention)), TensorRole::AttnOutput, Some(TensorRole::AttnOutputBias))
        };
        let recurrent = |ssm: &Ssm| -> Result<Self, EngineError> {
            let (kind, output) = match ssm.kind {
                Recurrent::Mamba1 | Recurrent::Mamba2 | Recurrent::MambaPlamo => {
                    (Kind::Mamba(Box::new(MambaLayer::load(loader, layer, ssm)?)), TensorRole::SsmOut)
                }
                Recurrent::Delta | Recurrent::DeltaNext => {
                    (Kind::Delta(Box::new(DeltaLayer::load(loader, layer, ssm)?)), TensorRole::SsmOut)
                }
                Recurrent::Kda => (Kind::Delta(Box::new(DeltaLayer::load(loader, layer, ssm)?)), TensorRole::AttnOutput),
                Recurrent::ShortConv => (Kind::ShortConv(Box::new(ShortConvLayer::load(loader, layer, ssm)?)), TensorRole::ShortConvOut),
                Recurrent::Lightning => (Kind::Lightning(Box::new(LightningLayer::load(loader, layer, ssm)?)), TensorRole::AttnOutput),
            };
            with(kind, output, None)
        };
        match &spec.mixer {
            MixerSpec::None => Ok(Vec::new()),
            MixerSpec::Attention(spec) => Ok(vec![attention(spec)?]),
            MixerSpec::Recurrent(ssm) => Ok(vec![recurrent(ssm)?]),
            MixerSpec::Both(spec, ssm) => Ok(vec![attention(spec)?, recurrent(ssm)?]),
            MixerSpec::Latent(spec) => {
                let latent = LatentLayer::load(loader, layer, spec, ropes[layer])?;
                Ok(vec![with(Kind::Latent(Box::new(latent)), TensorRole::AttnOutput, Some(TensorRole::AttnOutputBias))?])
            }
        }
    }

    /// Leaves the mixer's result, before its output projection, in `buffers.mixed`.
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, buffers: &mut MixerBuffers) {
        match &self.kind {
            Kind::Attention(layer) => layer.run(run, step, h, (&mut buffers.attention, &mut buffers.mixed)),
            Kind::Mamba(layer) => layer.run(run, step, h, (&mut buffers.mamba, &mut buffers.mixed)),
            Kind::Delta(layer) => layer.run(run, step, h, (&mut buffers.delta, &mut buffers.mixed)),
            Kind::ShortConv(layer) => layer.run(run, step, h, (&mut buffers.short_conv, &mut buffers.mixed)),
            Kind::Lightning(layer) => layer.run(run, step, h, (&mut buffers.lightning, &mut buffers.mixed)),
            Kind::Latent(layer) => layer.run(run, step, h, (&mut buffers.latent, &mut buffers.mixed)),
        }
    }
}
