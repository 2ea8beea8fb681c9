//! Writes the gated delta rule (Yang et al. 2024): the linear attention of Qwen3-Next and Qwen 3.5, and Kimi's with a decay per channel
//! (Kimi Linear, Moonshot AI 2025).
//!
//! q, k and v pass a convolution over time. Queries and keys have length 1. With the state S [key, value] of a head, and the row's decay g
//! and strength beta: S = g · S, S += k ⊗ (beta · (v − Sᵀ k)), y = Sᵀ q / sqrt(key). The result is norm(y) · silu(z), or norm(y) ·
//! sigmoid(z) in Kimi's form. g = e^(a · softplus(alpha + bias)), with one alpha per head, or per element of a key in Kimi's form.

use super::*;
use model::arch::Recurrent;
use model::{Activation, Ssm};

/// The results of the projections. The heads of a part lie one after another unless stated otherwise.
struct Projected {
    /// One buffer for q, k and v, or one buffer for each, with the convolution of each.
    qkv: Vec<(BufferId, TensorRole)>,
    z: BufferId,
    /// Beta before its sigmoid, and the number of heads in each group at the part's stride.
    beta: (Part, usize),
    /// The decay's alpha, in the same layout.
    alpha: (Part, usize),
}

impl Walk<'_> {
    pub fn delta(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Mixed, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, heads, groups, .. } = *ssm;
        let (shared, dim, by_key) = (groups * keys, inner / heads, kind == Recurrent::Kda);
        let projected = if by_key { self.kimi(i, ssm, h)? } else { self.qwen(i, ssm, h)? };
        let width = if by_key { heads * keys } else { heads };
        let beta = self.buffer("beta", heads);
        let (from, each) = projected.beta;
        self.map(Map { f: Function::Sigmoid, ..copy(from, part(beta, 0, each), heads / each, each) });
        let decay = self.buffer("decays", width);
        let (from, each) = projected.alpha;
        let (bias, scale) = (Some(self.required_vector(SsmDtBias, i)?), Some((self.required_vector(SsmA, i)?, width / heads)));
        let of = copy(from, part(decay, 0, each), width / each, each);
        self.map(Map { bias, f: Function::Softplus, scale, then: Function::Exp, ..of });
        let (mixed, state) = self.convolve_all(i, ssm, &projected.qkv)?;
        let eps = self.spec().norm_eps;
        for (first, length) in [(0, 1.0 / (keys as f32).sqrt()), (shared, 1.0)] {
            self.op(Op::ToLength(ToLength { at: part(mixed, first, keys), heads: groups, dim: keys, length, eps }));
        }
        let found = self.buffer("delta rule", inner);
        self.op(Op::Delta(Delta {
            q: part(mixed, 0, keys),
            k: part(mixed, shared, keys),
            v: part(mixed, 2 * shared, dim),
            decay: part(decay, 0, if by_key { keys } else { 1 }),
            beta: part(beta, 0, 1),
            by_key,
            // Qwen 3.5's files order value heads for tiled key heads
            tiled: kind == Recurrent::Delta,
            state,
            heads,
            key_heads: groups,
            keys,
            values: dim,
            out: found,
        }));
        let params = self.rms_norm(SsmNorm, i)?;
        let at = part(found, 0, dim);
        self.op(Op::Norm(Norm { from: at, to: at, heads, dim, params, own: false }));
        let out = self.buffer("gated delta rule", inner);
        let g = if by_key { Function::Sigmoid } else { Function::Activation(Activation::Silu) };
        self.map(Map { by: Some((part(projected.z, 0, dim), g)), ..copy(at, part(out, 0, dim), heads, dim) });
        Ok(Mixed { rows: out, output: if by_key { AttnOutput } else { SsmOut }, bias: None })
    }

    /// q, k and v after their convolutions over time, side by side, and the place of the rule's state behind that of the convolutions.
    fn convolve_all(&mut self, i: usize, ssm: &Ssm, qkv: &[(BufferId, TensorRole)]) -> Result<(BufferId, StatePart), EngineError> {
        let mixed = self.buffer("channels over time", ssm.inner + 2 * ssm.groups * ssm.state);
        let (mut to, mut first) = (0, 0);
        for &(from, kernel) in qkv {
            let (channels, taps) = (self.width(from), ssm.conv);
            let (kernel, state) = (self.required_vector(kernel, i)?, self.state_of(i, first));
            let at = part(mixed, to, 0);
            self.op(Op::Convolve(Convolve { from: whole(from), to: at, channels, taps, kernel, bias: None, silu: true, state }));
            (to, first) = (to + channels, first + (taps - 1) * channels);
        }
        Ok((mixed, self.state_of(i, first)))
    }

    /// The projections of Qwen3-Next and Qwen 3.5.
    fn qwen(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Projected, EngineError> {
        use TensorRole::*;
        let Ssm { kind, inner, state: keys, heads, groups, .. } = *ssm;
        let (qkv, z) = if kind == Recurrent::DeltaNext && !self.has(AttnQkv, i) {
            self.interleaved(i, ssm, h)?
        } else {
            let matrices = [self.matrix(AttnQkv, i)?, self.matrix(AttnGate, i)?];
            let (qkv, z) = (self.product_buffer(matrices[0], "q, k and v"), self.product_buffer(matrices[1], "z"));
            self.products(h, [(matrices[0], qkv), (matrices[1], z)], false);
            (qkv, z)
        };
        debug_assert_eq!(self.width(qkv), inner + 2 * groups * keys);
        let (beta, alpha) = if kind == Recurrent::Delta {
            let matrices = [self.matrix(SsmBeta, i)?, self.matrix(SsmAlpha, i)?];
            let (beta, alpha) = (self.product_buffer(matrices[0], "unfinished beta"), self.product_buffer(matrices[1], "unfinished alpha"));
            self.products(h, [(matrices[0], beta), (matrices[1], alpha)], false);
            ((whole(beta), heads), (whole(alpha), heads))
        } else {
            // per key head: beta, then alpha, of its value heads
            let matrix = self.matrix(SsmBa, i)?;
            let (both, each) = (self.product(h, matrix, "beta and alpha"), heads / groups);
            ((part(both, 0, 2 * each), each), (part(both, each, 2 * each), each))
        };
        Ok(Projected { qkv: vec![(qkv, SsmConv)], z, beta, alpha })
    }

    /// Per key head: q, k, then v and z of its value heads (the first files of Qwen3-Next).
    fn interleaved(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<(BufferId, BufferId), EngineError> {
        let Ssm { inner, state: keys, groups, .. } = *ssm;
        let shared = groups * keys;
        let matrix = self.matrix(TensorRole::SsmIn, i)?;
        let wide = self.product(h, matrix, "interleaved projections");
        let (values, each) = (inner / groups, 2 * (keys + inner / groups));
        let qkv = self.buffer("q, k and v", inner + 2 * shared);
        for (first, to, len) in [(0, 0, keys), (keys, shared, keys), (2 * keys, 2 * shared, values)] {
            self.map(copy(part(wide, first, each), part(qkv, to, len), groups, len));
        }
        let z = self.buffer("z", inner);
        self.map(copy(part(wide, 2 * keys + values, each), part(z, 0, values), groups, values));
        Ok((qkv, z))
    }

    /// Kimi's projections. z and the decay pass through a low rank.
    fn kimi(&mut self, i: usize, ssm: &Ssm, h: BufferId) -> Result<Projected, EngineError> {
        use TensorRole::*;
        let Ssm { state: keys, heads, .. } = *ssm;
        let mut products = Vec::new();
        for (role, name) in
            [(AttnQ, "q"), (AttnK, "k"), (AttnV, "v"), (SsmGA, "z of low rank"), (SsmFA, "alpha of low rank"), (SsmBeta, "unfinished beta")]
        {
            let matrix = self.matrix(role, i)?;
            products.push((matrix, self.product_buffer(matrix, name)));
        }
        let [q, k, v, low_z, low_alpha, beta] = std::array::from_fn(|at| products[at].1);
        self.products(h, products, false);
        let up = self.matrix(SsmGB, i)?;
        let z = self.product(low_z, up, "z");
        let up = self.matrix(SsmFB, i)?;
        let alpha = self.product(low_alpha, up, "unfinished alpha");
        let qkv = vec![(q, SsmConvQ), (k, SsmConvK), (v, SsmConvV)];
        Ok(Projected { qkv, z, beta: (whole(beta), heads), alpha: (whole(alpha), heads * keys) })
    }
}
