//! Builds the gated delta rule, as in `cpu/mixer/delta.rs`.

use super::super::sys;
use super::builder::{Builder, Input, copy, part};
use super::layer::Mixed;
use super::parts::NONE;
use crate::EngineError;
use model::arch::Recurrent;
use model::{Ssm, TensorRole};

/// The results of the projections. The heads of a part lie one after another unless stated otherwise.
struct Projected {
    /// One buffer for q, k and v, or one buffer for each, with the convolution of each.
    qkv: Vec<(sys::pen_part, usize, TensorRole)>,
    z: sys::pen_part,
    /// Beta before its sigmoid, and the number of heads in each group at the part's stride.
    beta: (sys::pen_part, usize),
    /// The decay's alpha, in the same layout.
    alpha: (sys::pen_part, usize),
}

impl Builder<'_> {
    pub fn delta(&mut self, i: usize, ssm: &Ssm, input: Input) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, conv, heads, groups, .. } = *ssm;
        let (shared, dim) = (groups * keys, inner / heads);
        let h = self.ready(input);
        let projected = if kind == Recurrent::Kda { self.kimi(i, ssm, h)? } else { self.qwen(i, ssm, h)? };
        let by_key = kind == Recurrent::Kda;
        let width = if by_key { heads * keys } else { heads };

        let beta = self.floats("beta", heads);
        let (from, each) = projected.beta;
        self.op(sys::pen_map { f: sys::PEN_SIGMOID, ..copy(from, part(beta, 0, each), heads / each, each) });
        let decay = self.floats("decays", width);
        let (from, each) = projected.alpha;
        let (bias, scale) = (self.required_vector(SsmDtBias, i)?, self.required_vector(SsmA, i)?);
        let of = copy(from, part(decay, 0, each), width / each, each);
        let scale_group = (width / heads) as u32;
        self.op(sys::pen_map { bias, f: sys::PEN_SOFTPLUS, scale, scale_group, then: sys::PEN_EXP, ..of });

        let mixed = self.floats("channels over time", inner + 2 * shared);
        let (mut to, mut state) = (0, 0);
        for (from, channels, kernel) in projected.qkv {
            self.convolve(i, [from, part(mixed, to, 0)], channels, (kernel, None, true, conv), state)?;
            (to, state) = (to + channels, state + (conv - 1) * channels);
        }
        for (first, length) in [(0, 1.0 / (keys as f32).sqrt()), (shared, 1.0)] {
            self.op(sys::pen_group_norm {
                r#in: part(mixed, first, keys),
                out: part(mixed, first, keys),
                kind: sys::PEN_LENGTH,
                heads: groups as u32,
                dim: keys as u32,
                weight: NONE,
                bias: NONE,
                own: 0,
                eps: self.weights.spec.norm_eps,
                length,
            });
        }
        let found = self.floats("delta rule's output", inner);
        self.op(sys::pen_delta {
            q: part(mixed, 0, keys),
            k: part(mixed, shared, keys),
            v: part(mixed, 2 * shared, dim),
            decay: part(decay, 0, if by_key { keys } else { 1 }),
            beta: part(beta, 0, 1),
            state: sys::pen_state { layer: self.states[i], first: state as u32 },
            by_key: u32::from(by_key),
            // Qwen 3.5's files order value heads for tiled key heads
            tiled: u32::from(kind == Recurrent::Delta),
            heads: heads as u32,
            key_heads: groups as u32,
            keys: keys as u32,
            values: dim as u32,
            out: found,
        });
        let norm = self.rms_norm(SsmNorm, i)?;
        self.group_norm([part(found, 0, dim); 2], heads, dim, norm);
        let out = self.halves("delta rule's output", inner);
        let g = if by_key { sys::PEN_SIGMOID } else { sys::PEN_SILU };
        self.op(sys::pen_map { by: projected.z, g, ..copy(part(found, 0, dim), part(out, 0, dim), heads, dim) });
        Ok(Mixed { rows: out, output: if by_key { AttnOutput } else { SsmOut }, bias: NONE })
    }

    /// The projections of Qwen3-Next and Qwen 3.5.
    fn qwen(&mut self, i: usize, ssm: &Ssm, h: u32) -> Result<Projected, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, heads, groups, .. } = *ssm;
        let (shared, dim) = (groups * keys, inner / heads);
        let (qkv, z) = if kind == Recurrent::DeltaNext && !self.has(AttnQkv, i) {
            // per key head: q, k, then v and z of its value heads (the first files of Qwen3-Next)
            let matrix = self.matrix(SsmIn, i)?;
            let wide = self.product(h, matrix, "interleaved projections");
            let (values, each) = (inner / groups, 2 * (keys + inner / groups));
            let qkv = self.floats("q, k and v", inner + 2 * shared);
            for (first, to, len) in [(0, 0, keys), (keys, shared, keys), (2 * keys, 2 * shared, values)] {
                self.op(copy(part(wide, first, each), part(qkv, to, len), groups, len));
            }
            let z = self.floats("z", inner);
            self.op(copy(part(wide, 2 * keys + values, each), part(z, 0, values), groups, values));
            (qkv, z)
        } else {
            let (qkv, z) = (self.matrix(AttnQkv, i)?, self.matrix(AttnGate, i)?);
            (self.product(h, qkv, "q, k and v"), self.product(h, z, "z"))
        };
        let (beta, alpha) = if kind == Recurrent::Delta {
            let (beta, alpha) = (self.matrix(SsmBeta, i)?, self.matrix(SsmAlpha, i)?);
            let beta = self.product(h, beta, "unfinished beta");
            ((part(beta, 0, 0), heads), (part(self.product(h, alpha, "unfinished alpha"), 0, 0), heads))
        } else {
            // per key head: beta, then alpha, of its value heads
            let matrix = self.matrix(SsmBa, i)?;
            let (both, each) = (self.product(h, matrix, "beta and alpha"), heads / groups);
            ((part(both, 0, 2 * each), each), (part(both, each, 2 * each), each))
        };
        let qkv = vec![(part(qkv, 0, 0), inner + 2 * shared, SsmConv)];
        Ok(Projected { qkv, z: part(z, 0, dim), beta, alpha })
    }

    /// Kimi's projections. z and the decay pass through a low rank.
    fn kimi(&mut self, i: usize, ssm: &Ssm, h: u32) -> Result<Projected, EngineError> {
        use TensorRole::*;
        let Ssm { inner, state: keys, heads, .. } = *ssm;
        let mut qkv = Vec::new();
        for (role, name, kernel) in [(AttnQ, "q", SsmConvQ), (AttnK, "k", SsmConvK), (AttnV, "v", SsmConvV)] {
            let matrix = self.matrix(role, i)?;
            qkv.push((part(self.product(h, matrix, name), 0, 0), inner, kernel));
        }
        let through = |builder: &mut Self, down: TensorRole, up: TensorRole, name: &str| -> Result<u32, EngineError> {
            let (down, up) = (builder.matrix(down, i)?, builder.matrix(up, i)?);
            let low = builder.product(h, down, "low rank");
            let rank = builder.program.tensors[down as usize].desc.rows as usize;
            let rows = builder.rounded("low rank", part(low, 0, 0), rank);
            Ok(builder.product(rows, up, name))
        };
        let z = through(self, SsmGA, SsmGB, "z")?;
        let alpha = through(self, SsmFA, SsmFB, "unfinished alpha")?;
        let beta = self.matrix(SsmBeta, i)?;
        let beta = self.product(h, beta, "unfinished beta");
        let dim = inner / heads;
        Ok(Projected { qkv, z: part(z, 0, dim), beta: (part(beta, 0, 0), heads), alpha: (part(alpha, 0, 0), heads * keys) })
    }
}
