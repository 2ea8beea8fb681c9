//! Writes the feed-forward part of a layer: dense, routed to experts, or both.

use super::*;
use crate::program::tensor::Change;
use model::FeedForward;
use model::arch::Beside;

/// Names the tensors of a dense network: the layer's own, or those of the expert that all rows share.
#[derive(Clone, Copy, PartialEq)]
pub enum Dense {
    OfLayer,
    Shared,
}

impl Dense {
    /// Gate, up and down.
    fn roles(self) -> [TensorRole; 3] {
        use TensorRole::*;
        match self {
            Dense::OfLayer => [FfnGate, FfnUp, FfnDown],
            Dense::Shared => [FfnGateShexp, FfnUpShexp, FfnDownShexp],
        }
    }
}

impl Walk<'_> {
    /// x += layer(h). `early` is the experts' input in architectures whose experts see the layer's input before attention.
    pub fn feed_forward(&mut self, i: usize, h: BufferId, early: Option<BufferId>, finish: Finish) -> Result<(), EngineError> {
        use TensorRole::*;
        let (hidden, ffn, rule) = (self.hidden(), self.spec().layers[i].ffn, self.spec().arch.experts);
        let Some(experts) = ffn.experts() else {
            return match ffn {
                FeedForward::Dense(_) => self.dense_branch(i, h, finish),
                _ => Ok(()),
            };
        };
        let beside = ffn.dense().map(|_| rule.beside);
        if beside == Some(Beside::Residual) {
            self.dense_branch(i, h, finish)?;
        }
        let branch = self.buffer("branch", hidden);
        let normed = beside == Some(Beside::Normed);
        if normed {
            self.experts_behind(i, experts, branch)?;
        } else {
            let seen = if beside == Some(Beside::Residual) { early.unwrap_or(h) } else { h };
            if !rule.early_router {
                self.score(i, seen)?;
            }
            self.experts(i, experts, seen, branch)?;
        }
        if let Some(Beside::Mean | Beside::Normed) = beside {
            let rows = self.widen(i, Dense::OfLayer, h)?;
            let dense = self.buffer("dense part", hidden);
            self.joined_product(i, FfnDown, rows, dense, false)?;
            if normed {
                let norm = self.rms_norm(PostFfnNorm1, i)?;
                self.norm_in_place(dense, norm);
            }
            self.map(Map { add: true, ..copy(whole(dense), whole(branch), 1, hidden) });
            if !normed {
                self.map(Map { factor: std::f32::consts::FRAC_1_SQRT_2, ..copy(whole(branch), whole(branch), 1, hidden) });
            }
        }
        self.add_branch(finish);
        Ok(())
    }

    fn dense_branch(&mut self, i: usize, h: BufferId, finish: Finish) -> Result<(), EngineError> {
        let rows = self.widen(i, Dense::OfLayer, h)?;
        let bias = self.vector(TensorRole::FfnDownBias, i);
        self.branch(i, &Mixed { rows, output: TensorRole::FfnDown, bias }, finish)
    }

    /// activation(gate(h)) · up(h), or activation(up(h)) for layers without a gate, with everything else that precedes the down projection.
    pub fn widen(&mut self, i: usize, of: Dense, h: BufferId) -> Result<BufferId, EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        let [gate_role, up_role, down_role] = of.roles();
        let inner = self.own_columns(down_role, i)?;
        let (own, dim) = (of == Dense::OfLayer, inner.len);
        let mut products = Vec::new();
        if self.has(gate_role, i) {
            products.push((self.rows(gate_role, i, inner)?, self.buffer("gate", dim)));
        }
        let gate = products.first().map(|(_, gate)| *gate);
        let up = self.buffer("up", dim);
        products.push((self.rows(up_role, i, inner)?, up));
        self.products(h, products, false);
        let out = self.buffer(if own { "wide rows" } else { "wide rows of the shared expert" }, dim);
        let vector = |walk: &mut Self, role| if own { walk.vector_part(role, i, inner) } else { None };
        let (gate_bias, up_bias) = (vector(self, FfnGateBias), vector(self, FfnUpBias));
        let cutoff = spec.layers[i].gate_cutoff.filter(|_| own);
        if cutoff.is_some() {
            self.must_be_whole("activate", "a cutoff by the mean of a row")?;
        }
        self.op(Op::Activate(Activate {
            gate,
            up,
            gate_bias,
            up_bias,
            activation: spec.activation,
            xielu: spec.xielu.get(i).copied().unwrap_or_default(),
            cutoff,
            dim,
            out,
        }));
        if own {
            if let Some(scale) = self.changed(FfnActScales, i, Change::Reciprocal, inner) {
                self.map(Map { scale: Some((scale, 1)), ..copy(whole(out), whole(out), 1, dim) });
            }
            if self.has(FfnSubNorm, i) {
                self.must_be_whole("norm", "a norm of all inner elements")?;
                let norm = self.rms_norm(FfnSubNorm, i)?;
                self.norm_in_place(out, norm);
            }
        }
        Ok(out)
    }
}
