//! Writes each layer's own input (Gemma 3n and 4): an embedding of the token, mixed with a projection of its usual embedding.

use super::*;

impl Walk<'_> {
    /// Writes the inputs of all layers into one buffer, if the model has such inputs.
    pub fn begin_per_layer(&mut self) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        let (hidden, len, layers) = (spec.hidden_dim, spec.per_layer_input, spec.num_layers());
        if len == 0 {
            return Ok(());
        }
        let width = layers * len;
        let table = self.table(PerLayerTokenEmbd)?;
        let out = self.buffer("embeddings of the layers", width);
        let scale = (len as f32).sqrt();
        self.op(Op::Embed(Embed { table, types: None, positions: None, scale, pads_embeddings: true, out }));
        let project = self.matrix(PerLayerModelProj, 0)?;
        let inputs = self.product(self.x, project, "inputs of the layers");
        let all = whole(inputs);
        self.map(Map { factor: 1.0 / (hidden as f32).sqrt(), ..copy(all, all, 1, width) });
        let params = self.rms_norm(PerLayerProjNorm, 0)?;
        let at = part(inputs, 0, len);
        self.op(Op::Norm(Norm { from: at, to: at, heads: layers, dim: len, params, own: false }));
        self.map(Map { add: true, ..copy(whole(out), all, 1, width) });
        self.map(Map { factor: std::f32::consts::FRAC_1_SQRT_2, ..copy(all, all, 1, width) });
        Ok(())
    }

    /// Writes norm(project(activation(gate(x)) · input)) of layer `i`. Returns its buffer.
    pub fn per_layer(&mut self, i: usize) -> Result<BufferId, EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        let (len, layers) = (spec.per_layer_input, spec.num_layers());
        let gate = self.matrix(PerLayerGate, i)?;
        let gate = self.product(self.x, gate, "gate of the layer's input");
        let inputs = self.buffer("inputs of the layers", layers * len);
        let rows = self.buffer("layer's input", len);
        let by = Some((part(inputs, i * len, 0), Function::Identity));
        self.map(Map { f: Function::Activation(spec.arch.activation), by, ..copy(whole(gate), whole(rows), 1, len) });
        let project = self.matrix(PerLayerProj, i)?;
        let own = self.product(rows, project, "branch");
        let norm = self.rms_norm(PerLayerPostNorm, i)?;
        self.norm_in_place(own, norm);
        Ok(own)
    }
}
