//! Writes LFM2's short convolution (Liquid AI 2025) and lightning attention (Qin et al. 2024; MiniMax-01).
//!
//! Short convolution: b, c, x = in(h); y = c · convolution(b · x). Lightning attention: q, k, v = silu(qkv(h)); with the state S of a head,
//! S = e^-slope · S + k ⊗ v and y = Sᵀ q; the result is norm(y) · sigmoid(gate(h)), with one norm over all heads.

use super::*;
use model::Ssm;

impl Walk<'_> {
    pub fn short_conv(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Mixed, EngineError> {
        let width = ssm.inner;
        let matrix = self.matrix(TensorRole::ShortConvIn, i)?;
        let wide = self.product(h, matrix, "b, c and x");
        let bx = self.buffer("b · x", width);
        let times = |first: usize| Some((part(wide, first, 0), Function::Identity));
        self.map(Map { by: times(2 * width), ..copy(whole(wide), whole(bx), 1, width) });
        let mixed = self.buffer("channels over time", width);
        let kernel = self.required_vector(TensorRole::ShortConv, i)?;
        self.op(Op::Convolve(Convolve {
            from: whole(bx),
            to: whole(mixed),
            channels: width,
            taps: ssm.conv,
            kernel,
            bias: None,
            silu: false,
            state: self.state_of(i, 0),
        }));
        let out = self.buffer("short convolution", width);
        self.map(Map { by: times(width), ..copy(whole(mixed), whole(out), 1, width) });
        Ok(Mixed { rows: out, output: TensorRole::ShortConvOut, bias: None })
    }

    pub fn lightning(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Mixed, EngineError> {
        let Ssm { inner, state: dim, heads, .. } = *ssm;
        let (qkv_matrix, gate_matrix) = (self.matrix(TensorRole::AttnQkv, i)?, self.matrix(TensorRole::AttnGate, i)?);
        let qkv = self.product_buffer(qkv_matrix, "q, k and v");
        let gate = self.product_buffer(gate_matrix, "attention's gate");
        self.products(h, [(qkv_matrix, qkv), (gate_matrix, gate)], false);
        let silu = Function::Activation(model::Activation::Silu);
        self.map(Map { f: silu, ..copy(whole(qkv), whole(qkv), 1, 3 * inner) });
        let found = self.buffer("linear attention", inner);
        let view = |of: usize| part(qkv, of * dim, 3 * dim);
        let decay = Decay::Constant(self.lightning_factors(i, heads));
        let state = self.state_of(i, 0);
        let (x, b, c) = (view(2), view(1), view(0));
        self.op(Op::Scan(Scan { x, b, c, group: 1, decay, state, heads, keys: dim, values: dim, out: found }));
        let norm = self.rms_norm(TensorRole::AttnSubNorm, i)?;
        self.norm_in_place(found, norm);
        let out = self.buffer("gated linear attention", inner);
        self.map(Map { by: Some((whole(gate), Function::Sigmoid)), ..copy(whole(found), whole(out), 1, inner) });
        Ok(Mixed { rows: out, output: TensorRole::AttnOutput, bias: None })
    }

    /// A layer's state from its float `first` on. The model's description says that the layer has one.
    pub fn state_of(&self, layer: usize, first: usize) -> StatePart {
        StatePart { state: self.states.get(layer).copied().flatten().unwrap_or(usize::MAX), first }
    }
}
