//! A layer's mixer: what lets a row see other rows of its sequence.

mod attention;
mod step;

use super::loader::{Loader, Mat};
use super::run::Run;
use super::simd::rows::Rows;
use crate::EngineError;
use attention::AttentionLayer;
use model::{LayerSpec, Mixer as MixerSpec, TensorSlot};
pub use step::Step;

/// A mixer and the projection of its output.
pub struct Mixer {
    kind: Kind,
    pub output: Mat,
    pub output_bias: Option<Vec<f32>>,
}

enum Kind {
    Attention(Box<AttentionLayer>),
}

/// Activations of the mixers.
#[derive(Default)]
pub struct Buffers {
    attention: attention::Buffers,
    /// What a mixer gave, before its output projection.
    pub mixed: Rows,
}

impl Mixer {
    /// The mixers of a layer, which work on the same input. `ropes`: for each layer the index of its rotation.
    pub fn load(loader: Loader, layer: usize, ropes: &[Option<usize>]) -> Result<Vec<Self>, EngineError> {
        let spec: &LayerSpec = &loader.weights.spec.layers[layer];
        let with = |kind, output, bias: Option<TensorSlot>| -> Result<Self, EngineError> {
            let output_bias = bias.and_then(|bias| loader.optional(bias, layer));
            Ok(Self { kind, output: loader.mat(output, layer)?, output_bias })
        };
        let attention = |spec| -> Result<Self, EngineError> {
            let attention = AttentionLayer::load(loader, layer, spec, ropes[layer])?;
            with(Kind::Attention(Box::new(attention)), TensorSlot::AttnOutput, Some(TensorSlot::AttnOutputBias))
        };
        match &spec.mixer {
            MixerSpec::None => Ok(Vec::new()),
            MixerSpec::Attention(spec) => Ok(vec![attention(spec)?]),
            other => Err(EngineError::Unsupported(format!("layer {layer}: {other:?} on the CPU"))),
        }
    }

    /// Leaves the mixer's result, before its output projection, in `buffers.mixed`.
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, buffers: &mut Buffers) {
        match &self.kind {
            Kind::Attention(layer) => layer.run(run, step, h, (&mut buffers.attention, &mut buffers.mixed)),
        }
    }
}
