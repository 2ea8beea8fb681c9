//! Writes the experts: scores, products and sums.

use super::feed_forward::Dense;
use super::*;
use crate::program::tensor::Change;
use model::Experts as Spec;

impl Walk<'_> {
    /// The router's scores of every expert.
    pub fn score(&mut self, i: usize, input: BufferId) -> Result<BufferId, EngineError> {
        let router = self.matrix(TensorRole::FfnRouter, i)?;
        let scores = self.product(input, router, "scores");
        let bias = self.vector(TensorRole::FfnRouterBias, i);
        if bias.is_some() {
            self.map(Map { bias, ..copy(whole(scores), whole(scores), 1, self.width(scores)) });
        }
        Ok(scores)
    }

    /// Computes the router's scores from the layer's input before attention, in architectures whose router sees that input.
    pub fn look_ahead(&mut self, i: usize) -> Result<(), EngineError> {
        let spec = self.spec();
        if spec.layers[i].ffn.experts().is_some() && spec.arch.experts.early_router {
            self.score(i, self.x)?;
        }
        Ok(())
    }

    /// out = norm(experts(norm(stream))), where router and experts have norms of their own (Gemma 4).
    pub fn experts_behind(&mut self, i: usize, experts: &Spec, out: BufferId) -> Result<(), EngineError> {
        use TensorRole::*;
        let weight = self.required_changed(FfnRouterScale, i, Change::OverRootOfLength)?;
        let seen = self.normed("router's h", Some(self.rms(Some(weight))));
        self.score(i, seen)?;
        let norm = self.rms_norm(FfnNormExps, i)?;
        let h = self.normed("experts' h", Some(norm));
        self.experts(i, experts, h, out)?;
        let norm = self.rms_norm(PostFfnNorm2, i)?;
        self.norm_in_place(out, norm);
        Ok(())
    }

    /// out = Σ weight · expert(h) over the experts that the scores choose for each row, plus the shared expert.
    pub fn experts(&mut self, i: usize, experts: &Spec, h: BufferId, out: BufferId) -> Result<(), EngineError> {
        use TensorRole::*;
        let rule = self.spec().arch.experts;
        let shared = if experts.shared_ffn_dim > 0 {
            let rows = self.widen(i, Dense::Shared, experts.shared_ffn_dim, h)?;
            let down = self.matrix(FfnDownShexp, i)?;
            let rows = self.product(rows, down, "shared expert");
            Some(SharedExpert { rows, router: self.vector(SharedRouter, i), input: h })
        } else {
            None
        };
        let has_adjugates = experts.chunk_ffn_dim > 0;
        let (count, used) = (experts.count, experts.used);
        let gate = if self.has(FfnGateExps, i) { Some(self.stack(FfnGateExps, i, count, used)?) } else { None };
        let chosen = Experts {
            experts: *experts,
            adjugate: false,
            scores: self.buffer("scores", count),
            input: h,
            out,
            add: false,
            gate,
            up: self.stack(FfnUpExps, i, count, used)?,
            down: self.stack(FfnDownExps, i, count, used)?,
            dim: experts.ffn_dim,
            biases: [FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias].map(|role| self.vector(role, i)),
            choice_bias: self.vector(ExpertChoiceBias, i),
            output_scales: self.vector(FfnDownExpsScale, i),
            activation: rule.activation.unwrap_or(self.spec().arch.activation),
            weigh_input: rule.weigh_input,
            factor: 1.0,
            shared: shared.filter(|_| !has_adjugates),
            mean_shared: rule.mean_shared && shared.is_some(),
        };
        self.op(Op::Experts(chosen));
        if !has_adjugates {
            return Ok(());
        }
        // adjugate experts, which see the output of the others
        let used = used.min(experts.num_chunks());
        let count = experts.num_chunks();
        let adjugates = Experts {
            adjugate: true,
            input: out,
            add: true,
            gate: Some(self.stack(FfnGateChexps, i, count, used)?),
            up: self.stack(FfnUpChexps, i, count, used)?,
            down: self.stack(FfnDownChexps, i, count, used)?,
            dim: experts.chunk_ffn_dim,
            biases: [None; 3],
            choice_bias: None,
            output_scales: None,
            weigh_input: false,
            factor: experts.chunk_scale,
            shared,
            ..chosen
        };
        self.op(Op::Experts(adjugates));
        Ok(())
    }
}
