//! Writes the experts: scores, products and sums.

use super::feed_forward::Dense;
use super::*;
use crate::program::scope::Span;
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
        let shared = if experts.shared_ffn_dim > 0 { Some(self.shared_expert(i, h)?) } else { None };
        let (used, own) = (experts.used, self.own_experts(experts.count)?);
        let gate = if self.has(FfnGateExps, i) { Some(self.stack(FfnGateExps, i, own, used)?) } else { None };
        let roles = [FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias];
        let [gate_bias, up_bias, down_bias] = roles.map(|role| self.bias_of_experts(role, i, own));
        let chosen = Experts {
            experts: *experts,
            adjugate: false,
            scores: self.buffer("scores", experts.count),
            input: h,
            out,
            add: false,
            own,
            gate,
            up: self.stack(FfnUpExps, i, own, used)?,
            down: self.stack(FfnDownExps, i, own, used)?,
            dim: experts.ffn_dim,
            biases: [gate_bias, up_bias, down_bias],
            choice_bias: self.vector(ExpertChoiceBias, i),
            output_scales: self.vector(FfnDownExpsScale, i),
            activation: rule.activation.unwrap_or(self.spec().arch.activation),
            weigh_input: rule.weigh_input,
            factor: 1.0,
        };
        self.joined_experts(chosen);
        if experts.chunk_ffn_dim > 0 {
            // adjugate experts, which see the output of the others
            let used = used.min(experts.num_chunks());
            let own = self.own_experts(experts.num_chunks())?;
            let adjugates = Experts {
                adjugate: true,
                input: out,
                add: true,
                own,
                gate: Some(self.stack(FfnGateChexps, i, own, used)?),
                up: self.stack(FfnUpChexps, i, own, used)?,
                down: self.stack(FfnDownChexps, i, own, used)?,
                dim: experts.chunk_ffn_dim,
                biases: [None; 3],
                choice_bias: None,
                output_scales: None,
                weigh_input: false,
                factor: experts.chunk_scale,
                ..chosen
            };
            self.joined_experts(adjugates);
        }
        if let Some(from) = shared {
            let router = self.vector(SharedRouter, i);
            self.op(Op::AddShared(AddShared { from, to: out, router, input: h, mean: rule.mean_shared }));
        }
        Ok(())
    }

    /// The output of the expert that all rows share. Every shard has its whole sum, and adds it once.
    fn shared_expert(&mut self, i: usize, h: BufferId) -> Result<BufferId, EngineError> {
        let rows = self.widen(i, Dense::Shared, h)?;
        let out = self.buffer("shared expert", self.hidden());
        self.joined_product(i, TensorRole::FfnDownShexp, rows, out, false)?;
        Ok(out)
    }

    /// Experts, of which each shard has some.
    fn joined_experts(&mut self, experts: Experts) {
        let (out, add, whole) = (experts.out, experts.add, self.shard().is_whole());
        let sums = if whole { out } else { self.partial_sums(out) };
        self.op(Op::Experts(Experts { out: sums, add: add && whole, ..experts }));
        self.exchange(sums, out, add);
    }

    /// The biases of some experts.
    fn bias_of_experts(&mut self, role: TensorRole, i: usize, own: Span) -> Option<TensorId> {
        let weight = self.weights.get(role, i)?;
        let each = weight.rows * weight.cols / own.of;
        self.vector_part(role, i, own.times(each))
    }
}
