//! Builds LFM2's short convolution and MiniMax-01's linear attention, as in `cpu/mixer/{short_conv,lightning}.rs`.

use super::super::sys;
use super::builder::{Builder, Input, NO_PART, copy, part};
use super::layer::Mixed;
use super::parts::NONE;
use super::tensor::Key;
use crate::EngineError;
use crate::decay::lightning_factors;
use model::{Ssm, TensorRole};

impl Builder<'_> {
    pub fn short_conv(&mut self, i: usize, ssm: &Ssm, input: Input) -> Result<Mixed, EngineError> {
        let width = ssm.inner;
        let matrix = self.matrix(TensorRole::ShortConvIn, i)?;
        let wide = self.floats("b, c and x", 3 * width);
        self.products(input, &[matrix], wide, sys::PEN_STORE);
        let bx = self.floats("b · x", width);
        self.op(sys::pen_map { by: part(wide, 2 * width, 0), ..copy(part(wide, 0, 0), part(bx, 0, 0), 1, width) });
        let mixed = self.floats("channels over time", width);
        let kernel = (TensorRole::ShortConv, None, false, ssm.conv);
        self.convolve(i, [part(bx, 0, 0), part(mixed, 0, 0)], width, kernel, 0)?;
        let out = self.halves("short convolution", width);
        self.op(sys::pen_map { by: part(wide, width, 0), ..copy(part(mixed, 0, 0), part(out, 0, 0), 1, width) });
        Ok(Mixed { rows: out, output: TensorRole::ShortConvOut, bias: NONE })
    }

    pub fn lightning(&mut self, i: usize, ssm: &Ssm, input: Input) -> Result<Mixed, EngineError> {
        let Ssm { inner, state: dim, heads, .. } = *ssm;
        let h = self.ready(input);
        let (qkv, gate) = (self.matrix(TensorRole::AttnQkv, i)?, self.matrix(TensorRole::AttnGate, i)?);
        let qkv = self.product(h, qkv, "qkv");
        let gate = self.product(h, gate, "attention's gate");
        let all = part(qkv, 0, 0);
        self.op(sys::pen_map { f: sys::PEN_SILU, ..copy(all, all, 1, 3 * inner) });
        let num_layers = self.weights.spec.num_layers();
        let name = format!("the decays of layer {i}");
        let factors = self.made_vector(Key::Vector(TensorRole::SsmA, i), name, heads, move |_| lightning_factors(heads, i, num_layers));
        let found = self.floats("linear attention", inner);
        let view = |of: usize| part(qkv, of * dim, 3 * dim);
        self.op(sys::pen_scan {
            x: view(2),
            b: view(1),
            c: view(0),
            factors: NO_PART,
            steps: NO_PART,
            state: sys::pen_state { layer: self.states[i], first: 0 },
            constant_factors: factors,
            a: NONE,
            by_channel: 0,
            group: 1,
            heads: heads as u32,
            keys: dim as u32,
            values: dim as u32,
            out: found,
        });
        let norm = self.rms_norm(TensorRole::AttnSubNorm, i)?;
        self.norm_in_place(found, inner, norm);
        let out = self.halves("linear attention", inner);
        self.op(sys::pen_map { by: part(gate, 0, 0), g: sys::PEN_SIGMOID, ..copy(part(found, 0, 0), part(out, 0, 0), 1, inner) });
        Ok(Mixed { rows: out, output: TensorRole::AttnOutput, bias: NONE })
    }
}
