//! Builds the experts: scores, products and sums, as in `cpu/{feed_forward,experts,routing}.rs`.

use super::super::sys;
use super::builder::{Builder, Input, Norm, activation, copy, part};
use super::feed_forward::Dense;
use super::parts::NONE;
use crate::EngineError;
use model::arch::Gating;
use model::{Experts, NormKind, TensorRole};

impl Builder<'_> {
    /// The router's scores of every expert.
    pub fn score(&mut self, i: usize, experts: &Experts, h: u32) -> Result<u32, EngineError> {
        let router = self.matrix(TensorRole::FfnRouter, i)?;
        let scores = self.product(h, router, "scores");
        let bias = self.vector(TensorRole::FfnRouterBias, i);
        if bias != NONE {
            self.op(sys::pen_map { bias, ..copy(part(scores, 0, 0), part(scores, 0, 0), 1, experts.count) });
        }
        Ok(scores)
    }

    /// Computes the router's scores from the layer's input before attention, in architectures whose router sees that input.
    pub fn look_ahead(&mut self, i: usize) -> Result<(), EngineError> {
        let spec = &self.weights.spec;
        let Some(experts) = spec.layers[i].ffn.experts().filter(|_| spec.arch.experts.early_router) else { return Ok(()) };
        let x = self.rounded_stream("stream");
        self.score(i, experts, x)?;
        Ok(())
    }

    /// out = norm(experts(norm(stream))), where router and experts have norms of their own (Gemma 4).
    pub fn experts_behind(&mut self, i: usize, experts: &Experts, out: u32) -> Result<(), EngineError> {
        use TensorRole::*;
        let hidden = self.weights.spec.hidden_dim;
        let weight = self.vector_with(FfnRouterScale, i, |all| {
            let scale = 1.0 / (all.len() as f32).sqrt();
            all.into_iter().map(|weight| weight * scale).collect()
        });
        let seen = self.input(Some(Norm { kind: NormKind::Rms, weight, bias: NONE }), "router's h");
        let seen = self.ready(seen);
        self.score(i, experts, seen)?;
        let norm = self.rms_norm(FfnNormExps, i)?;
        let h = self.input(Some(norm), "experts' h");
        let h = self.ready(h);
        self.experts(i, experts, h, out, false)?;
        let norm = self.rms_norm(PostFfnNorm2, i)?;
        self.norm_in_place(out, hidden, norm);
        Ok(())
    }

    /// out (+)= Σ weight · expert(h) over the experts that the scores choose for each row, plus the shared expert.
    pub fn experts(&mut self, i: usize, experts: &Experts, h: u32, out: u32, add: bool) -> Result<(), EngineError> {
        use TensorRole::*;
        let spec = &self.weights.spec;
        let (rule, hidden) = (spec.arch.experts, spec.hidden_dim);
        let has_adjugates = experts.chunk_ffn_dim > 0;
        let (shared, shared_router) = if experts.shared_ffn_dim > 0 {
            let rows = self.widen(i, Dense::Shared, experts.shared_ffn_dim, Input::Ready(h))?;
            let down = self.matrix(FfnDownShexp, i)?;
            (self.product(rows, down, "shared expert"), self.vector(SharedRouter, i))
        } else {
            (NONE, NONE)
        };
        let scores = self.floats("scores", experts.count);
        let [gate, up] = self.gate_and_up([FfnGateExps, FfnUpExps], i, experts.count, experts.used)?;
        let mut op = sys::pen_experts {
            scores,
            r#in: h,
            out,
            add: u32::from(add),
            count: experts.count as u32,
            used: experts.used as u32,
            gating: match experts.gating {
                Gating::Softmax => sys::PEN_GATE_SOFTMAX,
                Gating::Sigmoid => sys::PEN_GATE_SIGMOID,
                Gating::SoftmaxOfChosen => sys::PEN_GATE_SOFTMAX_OF_CHOSEN,
            },
            normalise: u32::from(experts.normalise),
            groups: experts.groups as u32,
            groups_used: experts.groups_used as u32,
            choice_bias: self.vector(ExpertChoiceBias, i),
            output_scales: self.vector(FfnDownExpsScale, i),
            chunk_group: 0,
            gate,
            up,
            down: self.stack(FfnDownExps, i, experts.count, experts.used)?,
            dim: experts.ffn_dim as u32,
            hidden: hidden as u32,
            gate_bias: self.vector(FfnGateExpsBias, i),
            up_bias: self.vector(FfnUpExpsBias, i),
            down_bias: self.vector(FfnDownExpsBias, i),
            activation: activation(rule.activation.unwrap_or(spec.arch.activation)),
            weigh_input: u32::from(rule.weigh_input),
            shared: if has_adjugates { NONE } else { shared },
            shared_router: if has_adjugates { NONE } else { shared_router },
            mean_shared: u32::from(rule.mean_shared && shared != NONE),
            scale: experts.scale,
            factor: 1.0,
        };
        self.op(op);
        if !has_adjugates {
            return Ok(());
        }
        // adjugate experts, which see the output of the others (GroveMoE)
        let count = experts.num_chunks();
        let seen = self.rounded("experts' sum", part(out, 0, 0), hidden);
        let used = experts.used.min(count);
        [op.gate, op.up] = self.gate_and_up([FfnGateChexps, FfnUpChexps], i, count, used)?;
        op.down = self.stack(FfnDownChexps, i, count, used)?;
        (op.r#in, op.add, op.used, op.chunk_group) = (seen, 1, used as u32, experts.chunk_group as u32);
        (op.dim, op.factor) = (experts.chunk_ffn_dim as u32, experts.chunk_scale);
        [op.gate_bias, op.up_bias, op.down_bias, op.choice_bias, op.output_scales] = [NONE; 5];
        (op.groups, op.groups_used, op.weigh_input, op.shared, op.shared_router) = (0, 0, 0, shared, shared_router);
        self.op(op);
        Ok(())
    }

    fn gate_and_up(&mut self, roles: [TensorRole; 2], i: usize, count: usize, used: usize) -> Result<[u32; 2], EngineError> {
        if !self.has(roles[0], i) {
            return Ok([NONE, self.stack(roles[1], i, count, used)?]);
        }
        match self.pair(roles, i, count, used)? {
            Some(pair) => Ok(pair),
            None => Ok([self.stack(roles[0], i, count, used)?, self.stack(roles[1], i, count, used)?]),
        }
    }
}
