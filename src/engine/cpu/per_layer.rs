//! Computes each layer's own input (Gemma 3n and 4): an embedding of the token, mixed with a projection of its usual embedding.

use super::activation::Activate;
use super::loader::{Loader, Mat, dequantize_row};
use super::run::Run;
use super::simd::norm::Norm;
use super::simd::rows::Rows;
use crate::{EngineError, Input};
use model::{TensorRole, Weight};

/// The weights that the layers' inputs are computed from.
pub struct PerLayerInputs {
    /// One row per token, with the embeddings of all layers.
    token_embd: Weight,
    /// Projects the usual embedding to the inputs of all layers.
    project: Mat,
    norm: Norm,
}

/// The weights that a layer applies to its own input.
pub struct PerLayer {
    gate: Mat,
    project: Mat,
    norm: Norm,
    activate: Activate,
    /// The start of the layer's input in a row.
    start: usize,
    len: usize,
}

/// The activations of a step.
#[derive(Default)]
pub struct PerLayerBuffers {
    inputs: Rows,     // [num_tokens, layers · len]
    embeddings: Rows, // [num_tokens, layers · len]
    gate: Rows,       // [num_tokens, len]
}

impl PerLayerInputs {
    /// Loads the weights. None if the layers have no inputs of their own.
    pub fn load(loader: Loader) -> Result<Option<Self>, EngineError> {
        if loader.weights.spec.per_layer_input == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            token_embd: *loader.weight(TensorRole::PerLayerTokenEmbd, 0)?,
            project: loader.mat(TensorRole::PerLayerModelProj, 0)?,
            norm: loader.rms_norm(TensorRole::PerLayerProjNorm, 0)?,
        }))
    }

    /// Computes the inputs of all layers. `x` holds the usual embeddings of `inputs`.
    pub fn begin(&self, run: &mut Run, inputs: &[Input], x: &Rows, b: &mut PerLayerBuffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let (len, width) = (self.norm.weight.len(), self.token_embd.cols);
        b.embeddings.reshape(inputs.len(), width);
        b.embeddings.for_each(run.pool, |i, row| {
            // An embedding that does not come from a token counts as token 0, which is padding.
            let id = if let Input::Token(id) = inputs[i] { id as usize } else { 0 };
            dequantize_row(weights, &self.token_embd, id, row);
        });
        b.inputs.reshape(inputs.len(), width);
        run.linear(x, false, vec![(self.project.matrix(weights), &mut b.inputs)]);
        let (project_scale, embedding_scale) = (1.0 / (x.width() as f32).sqrt(), (len as f32).sqrt());
        b.inputs.for_each(run.pool, |i, row| {
            for (input, embedding) in row.chunks_exact_mut(len).zip(b.embeddings.row(i).chunks_exact(len)) {
                input.iter_mut().for_each(|x| *x *= project_scale);
                kernels.norm_in_place(input, &self.norm);
                let mix = |(x, e): (&mut f32, &f32)| *x = (*x + e * embedding_scale) * std::f32::consts::FRAC_1_SQRT_2;
                input.iter_mut().zip(embedding).for_each(mix);
            }
        });
    }
}

impl PerLayer {
    /// Loads a layer's weights. None if the layer has no input of its own.
    pub fn load(loader: Loader, layer: usize) -> Result<Option<Self>, EngineError> {
        let (spec, len) = (&loader.weights.spec, loader.weights.spec.per_layer_input);
        if len == 0 {
            return Ok(None);
        }
        Ok(Some(Self {
            gate: loader.mat(TensorRole::PerLayerGate, layer)?,
            project: loader.mat(TensorRole::PerLayerProj, layer)?,
            norm: loader.rms_norm(TensorRole::PerLayerPostNorm, layer)?,
            activate: Activate { kind: spec.arch.activation, xielu: [0.0; 4] },
            start: layer * len,
            len,
        }))
    }

    /// out = norm(project(activation(gate(x)) · input))
    pub fn run(&self, run: &mut Run, x: &Rows, out: &mut Rows, b: &mut PerLayerBuffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        b.gate.reshape(x.num_rows(), self.len);
        run.linear(x, false, vec![(self.gate.matrix(weights), &mut b.gate)]);
        b.gate.for_each(run.pool, |i, row| self.activate.gated(kernels, row, &b.inputs.row(i)[self.start..][..self.len]));
        out.resize(x.num_rows());
        run.linear(&b.gate, false, vec![(self.project.matrix(weights), &mut *out)]);
        out.for_each(run.pool, |_, row| kernels.norm_in_place(row, &self.norm));
    }
}
