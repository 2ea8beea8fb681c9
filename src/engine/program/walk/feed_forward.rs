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
    fn roles(self) -> [TensorRole; 2] {
        use TensorRole::*;
        match self {
            Dense::OfLayer => [FfnGate, FfnUp],
            Dense::Shared => [FfnGateShexp, FfnUpShexp],
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
                FeedForward::Dense(dim) => self.dense_branch(i, dim, h, finish),
                _ => Ok(()),
            };
        };
        let beside = ffn.dense().map(|dim| (dim, rule.beside));
        if let Some((dim, Beside::Residual)) = beside {
            self.dense_branch(i, dim, h, finish)?;
        }
        let branch = self.buffer("branch", hidden);
        let normed = matches!(beside, Some((_, Beside::Normed)));
        if normed {
            self.experts_behind(i, experts, branch)?;
        } else {
            let seen = if matches!(beside, Some((_, Beside::Residual))) { early.unwrap_or(h) } else { h };
            if !rule.early_router {
                self.score(i, seen)?;
            }
            self.experts(i, experts, seen, branch)?;
        }
        if let Some((dim, Beside::Mean | Beside::Normed)) = beside {
            let rows = self.widen(i, Dense::OfLayer, dim, h)?;
            let down = self.matrix(FfnDown, i)?;
            let dense = self.product(rows, down, "dense part");
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

    fn dense_branch(&mut self, i: usize, dim: usize, h: BufferId, finish: Finish) -> Result<(), EngineError> {
        let rows = self.widen(i, Dense::OfLayer, dim, h)?;
        let (down, bias) = (self.matrix(TensorRole::FfnDown, i)?, self.vector(TensorRole::FfnDownBias, i));
        self.branch(down, rows, bias, finish);
        Ok(())
    }

    /// activation(gate(h)) · up(h), or activation(up(h)) for layers without a gate, with everything else that precedes the down projection.
    pub fn widen(&mut self, i: usize, of: Dense, dim: usize, h: BufferId) -> Result<BufferId, EngineError> {
        use TensorRole::*;
        let spec = self.spec();
        let [gate_role, up_role] = of.roles();
        let own = of == Dense::OfLayer;
        let mut products = Vec::new();
        if self.has(gate_role, i) {
            products.push((self.matrix(gate_role, i)?, self.buffer("gate", dim)));
        }
        let gate = products.first().map(|(_, gate)| *gate);
        let up = self.buffer("up", dim);
        products.push((self.matrix(up_role, i)?, up));
        self.products(h, products, false);
        let out = self.buffer(if own { "wide rows" } else { "wide rows of the shared expert" }, dim);
        let vector = |walk: &mut Self, role| if own { walk.vector(role, i) } else { None };
        let (gate_bias, up_bias) = (vector(self, FfnGateBias), vector(self, FfnUpBias));
        self.op(Op::Activate(Activate {
            gate,
            up,
            gate_bias,
            up_bias,
            activation: spec.arch.activation,
            xielu: spec.xielu.get(i).copied().unwrap_or_default(),
            cutoff: spec.layers[i].gate_cutoff.filter(|_| own),
            dim,
            out,
        }));
        if own {
            if let Some(scale) = self.changed(FfnActScales, i, Change::Reciprocal) {
                self.map(Map { scale: Some((scale, 1)), ..copy(whole(out), whole(out), 1, dim) });
            }
            if self.has(FfnSubNorm, i) {
                let norm = self.rms_norm(FfnSubNorm, i)?;
                self.norm_in_place(out, norm);
            }
        }
        Ok(out)
    }
}
