//! Builds the feed-forward part of a layer, as in `cpu/feed_forward.rs`.

use super::super::sys;
use super::builder::{Builder, Input, Norm, activation, copy, part};
use super::parts::NONE;
use crate::EngineError;
use model::arch::Beside;
use model::{Activation, FeedForward, TensorRole};

/// Names the tensors of a dense network: the layer's own, or those of the expert that all rows share.
#[derive(Clone, Copy, PartialEq)]
pub enum Dense {
    OfLayer,
    Shared,
}

impl Dense {
    fn roles(self) -> [TensorRole; 3] {
        use TensorRole::*;
        match self {
            Dense::OfLayer => [FfnGate, FfnUp, FfnDown],
            Dense::Shared => [FfnGateShexp, FfnUpShexp, FfnDownShexp],
        }
    }
}

impl Builder<'_> {
    /// x += layer(h). `input` is h, unless h is the current norm of the stream. `early` is the experts' input in architectures whose
    /// experts see the layer's input before attention.
    pub fn feed_forward(
        &mut self,
        i: usize,
        input: Option<Input>,
        norm: Option<Norm>,
        early: Option<u32>,
        (post, scale): (Option<Norm>, f32),
    ) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let (hidden, ffn, rule) = (spec.hidden_dim, spec.layers[i].ffn, spec.arch.experts);
        if ffn == FeedForward::None {
            return Ok(());
        }
        let input = input.unwrap_or_else(|| self.input(norm, "h"));
        let Some(experts) = ffn.experts() else {
            let dim = ffn.dense().unwrap_or_default();
            return self.dense_branch(i, dim, input, post, scale);
        };
        let h = self.ready(input);
        let beside = ffn.dense().map(|dim| (dim, rule.beside));
        if let Some((dim, Beside::Residual)) = beside {
            self.dense_branch(i, dim, Input::Ready(h), post, scale)?;
        }
        let branch = self.floats("branch", hidden);
        let normed = matches!(beside, Some((_, Beside::Normed)));
        let alone = matches!(beside, None | Some((_, Beside::Either | Beside::Residual)));
        if normed {
            self.experts_behind(i, experts, branch)?;
        } else {
            let seen = if matches!(beside, Some((_, Beside::Residual))) { early.unwrap_or(h) } else { h };
            if !rule.early_router {
                self.score(i, experts, seen)?;
            }
            let direct = alone && post.is_none() && scale == 1.0 && experts.chunk_ffn_dim == 0;
            if direct {
                self.settle();
                return self.experts(i, experts, seen, self.x, true);
            }
            self.experts(i, experts, seen, branch, false)?;
        }
        if let Some((dim, Beside::Mean | Beside::Normed)) = beside {
            let rows = self.widen(i, Dense::OfLayer, dim, Input::Ready(h))?;
            let down = self.matrix(FfnDown, i)?;
            let dense = self.product(rows, down, "dense part");
            if normed {
                let norm = self.rms_norm(PostFfnNorm1, i)?;
                self.norm_in_place(dense, hidden, norm);
            }
            self.op(sys::pen_map { add: 1, ..copy(part(dense, 0, 0), part(branch, 0, 0), 1, hidden) });
            if !normed {
                let factor = std::f32::consts::FRAC_1_SQRT_2;
                self.op(sys::pen_map { factor, ..copy(part(branch, 0, 0), part(branch, 0, 0), 1, hidden) });
            }
        }
        self.settle();
        self.add(post, scale);
        Ok(())
    }

    fn dense_branch(&mut self, i: usize, dim: usize, input: Input, post: Option<Norm>, scale: f32) -> Result<(), EngineError> {
        let rows = self.widen(i, Dense::OfLayer, dim, input)?;
        let (down, bias) = (self.matrix(TensorRole::FfnDown, i)?, self.vector(TensorRole::FfnDownBias, i));
        self.branch(down, rows, bias, post, scale);
        Ok(())
    }

    /// The rows before the down projection, rounded to float16.
    pub fn widen(&mut self, i: usize, of: Dense, dim: usize, input: Input) -> Result<u32, EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let [gate, up, _] = of.roles();
        let own = of == Dense::OfLayer;
        let vector = |builder: &mut Self, role| if own { builder.vector(role, i) } else { NONE };
        let (gate_bias, up_bias) = (vector(self, FfnGateBias), vector(self, FfnUpBias));
        let cutoff = if own { spec.layers[i].gate_cutoff.unwrap_or(0.0) } else { 0.0 };
        let kind = spec.arch.activation;
        let gated = self.has(gate, i);
        let out = self.halves(if own { "wide rows" } else { "wide rows of all" }, dim);
        let epilogue = match kind {
            Activation::Silu => Some(sys::PEN_SILU_MUL),
            Activation::Gelu => Some(sys::PEN_GELU_MUL),
            _ => None,
        };
        let plain = gated && gate_bias == NONE && up_bias == NONE && cutoff == 0.0;
        let pair = if plain && epilogue.is_some() { self.pair([gate, up], i, 1, 1)? } else { None };
        if let (Some([both, _]), Some(epilogue)) = (pair, epilogue) {
            self.products(input, &[both], out, epilogue);
        } else {
            let gate_up = self.floats("gate and up", if gated { 2 * dim } else { dim });
            let matrices = if gated { vec![self.matrix(gate, i)?, self.matrix(up, i)?] } else { vec![self.matrix(up, i)?] };
            self.products(input, &matrices, gate_up, sys::PEN_STORE);
            let [xielu0, xielu1, xielu2, xielu3] = spec.xielu.get(i).copied().unwrap_or_default();
            self.op(sys::pen_activate {
                gate_up,
                gate_bias,
                up_bias,
                out,
                dim: dim as u32,
                gated: u32::from(gated),
                activation: activation(kind),
                cutoff,
                xielu0,
                xielu1,
                xielu2,
                xielu3,
            });
        }
        let scale = if own { self.vector_with(FfnActScales, i, |all| all.into_iter().map(|scale| 1.0 / scale).collect()) } else { NONE };
        if scale != NONE {
            self.op(sys::pen_map { scale, scale_group: 1, ..copy(part(out, 0, 0), part(out, 0, 0), 1, dim) });
        }
        if own && self.has(FfnSubNorm, i) {
            let norm = self.rms_norm(FfnSubNorm, i)?;
            self.norm_in_place(out, dim, norm);
        }
        Ok(out)
    }
}
