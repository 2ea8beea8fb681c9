//! Builds each layer's own input, as in `cpu/per_layer.rs`.

use super::super::sys;
use super::builder::{Builder, activation, copy, part};
use super::parts::NONE;
use crate::EngineError;
use model::TensorRole;

impl Builder<'_> {
    /// The inputs of all layers: per-layer embeddings of the tokens, mixed with a projection of their usual embeddings.
    pub fn begin_per_layer(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let (hidden, len, layers) = (spec.hidden_dim, spec.per_layer_input, spec.num_layers());
        if len == 0 {
            return Ok(());
        }
        let width = layers * len;
        let table = self.stack(PerLayerTokenEmbd, 0, 1, 0)?;
        let embedded = self.floats("embeddings of the layers", width);
        self.op(sys::pen_embed { table, types: NONE, positions: NONE, out: embedded, scale: (len as f32).sqrt() });
        let x = self.rounded_stream("stream");
        let project = self.matrix(PerLayerModelProj, 0)?;
        let inputs = self.product(x, project, "inputs of the layers");
        let all = part(inputs, 0, 0);
        self.op(sys::pen_map { factor: 1.0 / (hidden as f32).sqrt(), ..copy(all, all, 1, width) });
        let norm = self.rms_norm(PerLayerProjNorm, 0)?;
        self.group_norm([part(inputs, 0, len); 2], layers, len, norm);
        self.op(sys::pen_map { add: 1, ..copy(part(embedded, 0, 0), all, 1, width) });
        self.op(sys::pen_map { factor: std::f32::consts::FRAC_1_SQRT_2, ..copy(all, all, 1, width) });
        Ok(())
    }

    /// norm(project(activation(gate(x)) · input))
    pub fn per_layer(&mut self, i: usize) -> Result<u32, EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let (hidden, len, layers) = (spec.hidden_dim, spec.per_layer_input, spec.num_layers());
        let x = self.rounded_stream("stream");
        let gate = self.matrix(PerLayerGate, i)?;
        let gate = self.product(x, gate, "gate of the layer's input");
        let inputs = self.floats("inputs of the layers", layers * len);
        let rows = self.halves("layer's input", len);
        let gated = copy(part(gate, 0, 0), part(rows, 0, 0), 1, len);
        self.op(sys::pen_map { f: activation(spec.arch.activation), by: part(inputs, i * len, 0), ..gated });
        let project = self.matrix(PerLayerProj, i)?;
        let own = self.product(rows, project, "branch");
        let norm = self.rms_norm(PerLayerPostNorm, i)?;
        self.norm_in_place(own, hidden, norm);
        Ok(own)
    }
}
