//! The feed-forward part of a layer: dense, routed to experts, or both.

use super::activation::{Activate, sigmoid};
use super::loader::{Loader, Mat};
use super::routing::{Routing, choose};
use super::run::{Finish, Run, Stream};
use super::simd::rows::Rows;
use crate::EngineError;
use model::arch::{Beside, ExpertRule};
use model::{Experts, FeedForward as FeedForwardSpec, TensorSlot};

/// The three matrices of a feed-forward network.
struct Dense {
    /// None: the activation is applied to `up`.
    gate: Option<Mat>,
    up: Mat,
    down: Mat,
    gate_bias: Option<Vec<f32>>,
    up_bias: Option<Vec<f32>>,
    down_bias: Option<Vec<f32>>,
    /// A norm of what the activation gives.
    sub_norm: Option<super::simd::norm::Norm>,
    /// Divisors of what the activation gives.
    act_scales: Option<Vec<f32>>,
    activate: Activate,
    dim: usize,
}

/// The experts' matrices in stacks, and the router that picks among them.
struct Routed {
    experts: Experts,
    rule: ExpertRule,
    activate: Activate,
    router: Mat,
    router_bias: Option<Vec<f32>>,
    choice_bias: Option<Vec<f32>>,
    gate: Option<Mat>,
    up: Mat,
    down: Mat,
    /// [experts, rows] biases of gate, up and down
    biases: [Option<Vec<f32>>; 3],
    /// The expert that all rows share, and its router of one row, if it has one.
    shared: Option<(Dense, Option<Mat>)>,
}

pub struct FeedForward {
    dense: Option<Dense>,
    routed: Option<Routed>,
}

/// Activations of a step. See [`Routing`] for assignments.
#[derive(Default)]
pub struct Buffers {
    gate: Rows,          // [num_tokens, ffn]
    up: Rows,            // [num_tokens, ffn]
    shared: Rows,        // [num_tokens, hidden] output of the shared expert, or of the dense part beside experts
    shared_score: Rows,  // [num_tokens, 1]
    scores: Rows,        // [num_tokens, experts]
    expert_input: Rows,  // [num_assignments, hidden]
    expert_gate: Rows,   // [num_assignments, expert ffn]
    expert_up: Rows,     // [num_assignments, expert ffn]
    expert_output: Rows, // [num_assignments, hidden]
}

impl FeedForward {
    /// None: the layer has no feed-forward part.
    pub fn load(loader: Loader, layer: usize) -> Result<Option<Self>, EngineError> {
        use TensorSlot::*;
        let (spec, of) = (&loader.weights.spec, &loader.weights.spec.layers[layer].ffn);
        if *of == FeedForwardSpec::None {
            return Ok(None);
        }
        let dense_slots = [FfnGate, FfnUp, FfnDown, FfnGateBias, FfnUpBias, FfnDownBias];
        let dense = of.dense().map(|dim| Dense::load(loader, layer, dense_slots, dim)).transpose()?;
        let Some(experts) = of.experts() else { return Ok(Some(Self { dense, routed: None })) };
        if experts.chunk_ffn_dim > 0 || spec.arch.experts.beside == Beside::Normed {
            return Err(EngineError::Unsupported(format!("the experts of architecture {} on the CPU", spec.arch.name)));
        }
        let shared = if experts.shared_ffn_dim > 0 {
            let mut dense =
                Dense::load(loader, layer, [FfnGateShexp, FfnUpShexp, FfnDownShexp, FfnGate, FfnUp, FfnDown], experts.shared_ffn_dim)?;
            [dense.gate_bias, dense.up_bias, dense.down_bias] = [None, None, None];
            Some((dense, loader.optional_mat(SharedRouter, layer)?))
        } else {
            None
        };
        let activate = Activate { kind: spec.arch.experts.activation.unwrap_or(spec.arch.activation), xielu: [0.0; 4] };
        let routed = Routed {
            experts: *experts,
            rule: spec.arch.experts,
            activate,
            router: loader.mat(FfnRouter, layer)?,
            router_bias: loader.optional(FfnRouterBias, layer),
            choice_bias: loader.optional(ExpertChoiceBias, layer),
            gate: loader.optional_mat(FfnGateExps, layer)?,
            up: loader.mat(FfnUpExps, layer)?,
            down: loader.mat(FfnDownExps, layer)?,
            biases: [FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias].map(|slot| loader.optional(slot, layer)),
            shared,
        };
        Ok(Some(Self { dense, routed: Some(routed) }))
    }

    /// What the layer takes of its input before attention: the router's scores, in architectures whose router sees that input.
    pub fn look_ahead(&self, run: &mut Run, x: &Rows, b: &mut Buffers) {
        if let Some(routed) = self.routed.as_ref().filter(|routed| routed.rule.early_router) {
            routed.score(run, x, b);
        }
    }

    /// x += layer(h). `early`: what the experts see instead of h, in architectures whose experts see the input before attention.
    pub fn run(&self, run: &mut Run, (h, early): (&Rows, &Rows), stream: &mut Stream, finish: Finish, b: &mut Buffers) {
        let Some(routed) = &self.routed else {
            if let Some(dense) = &self.dense {
                dense.widen(run, h, b);
                run.branch((dense.down.matrix(run.weights), &b.gate), stream, Finish { bias: dense.down_bias.as_deref(), ..finish });
            }
            return;
        };
        let beside = self.dense.as_ref().map(|dense| (dense, routed.rule.beside));
        if let Some((dense, Beside::Residual)) = beside {
            dense.widen(run, h, b);
            run.branch((dense.down.matrix(run.weights), &b.gate), stream, Finish { bias: dense.down_bias.as_deref(), ..finish });
        }
        let input = if matches!(beside, Some((_, Beside::Residual))) { early } else { h };
        routed.run(run, input, stream.branch, b);
        if let Some((dense, Beside::Mean)) = beside {
            dense.widen(run, h, b);
            b.shared.reshape(h.num_rows(), stream.branch.width());
            run.linear(&b.gate, false, vec![(dense.down.matrix(run.weights), &mut b.shared)]);
            let half = std::f32::consts::FRAC_1_SQRT_2;
            stream.branch.for_each(run.pool, |i, row| row.iter_mut().zip(b.shared.row(i)).for_each(|(sum, x)| *sum = (*sum + x) * half));
        }
        run.add(stream, finish);
    }
}

impl Dense {
    fn load(loader: Loader, layer: usize, slots: [TensorSlot; 6], dim: usize) -> Result<Self, EngineError> {
        use TensorSlot::*;
        let spec = &loader.weights.spec;
        let [gate, up, down, gate_bias, up_bias, down_bias] = slots;
        let own = up == FfnUp;
        let xielu = spec.xielu.get(layer).copied().unwrap_or_default();
        let sub_norm = own && loader.weights.get(FfnSubNorm, layer).is_some();
        let [gate_bias, up_bias, down_bias] =
            [gate_bias, up_bias, down_bias].map(|slot| own.then(|| loader.optional(slot, layer)).flatten());
        Ok(Self {
            gate: loader.optional_mat(gate, layer)?,
            up: loader.mat(up, layer)?,
            down: loader.mat(down, layer)?,
            gate_bias,
            up_bias,
            down_bias,
            sub_norm: if sub_norm { Some(loader.rms_norm(FfnSubNorm, layer)?) } else { None },
            act_scales: if own { loader.optional(FfnActScales, layer) } else { None },
            activate: Activate { kind: spec.arch.activation, xielu },
            dim,
        })
    }

    /// b.gate = activation(gate(h)) · up(h), or activation(up(h)) for layers without a gate, with what else precedes the down projection.
    fn widen(&self, run: &mut Run, h: &Rows, b: &mut Buffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let bias = |row: &mut [f32], bias: &Option<Vec<f32>>| bias.iter().for_each(|bias| kernels.add_to(row, bias));
        b.gate.reshape(h.num_rows(), self.dim);
        if let Some(gate) = &self.gate {
            b.up.reshape(h.num_rows(), self.dim);
            run.linear(h, false, vec![(gate.matrix(weights), &mut b.gate), (self.up.matrix(weights), &mut b.up)]);
            if self.up_bias.is_some() {
                b.up.for_each(run.pool, |_, row| bias(row, &self.up_bias));
            }
            b.gate.for_each(run.pool, |i, row| {
                bias(row, &self.gate_bias);
                self.activate.gated(kernels, row, b.up.row(i));
            });
        } else {
            run.linear(h, false, vec![(self.up.matrix(weights), &mut b.gate)]);
            b.gate.for_each(run.pool, |_, row| {
                bias(row, &self.up_bias);
                self.activate.apply(kernels, row);
            });
        }
        if self.act_scales.is_some() || self.sub_norm.is_some() {
            b.gate.for_each(run.pool, |_, row| {
                if let Some(scales) = &self.act_scales {
                    row.iter_mut().zip(scales).for_each(|(x, scale)| *x /= scale);
                }
                if let Some(norm) = &self.sub_norm {
                    kernels.norm_in_place(row, norm);
                }
            });
        }
    }
}

impl Routed {
    /// The router's scores of every expert.
    fn score(&self, run: &mut Run, x: &Rows, b: &mut Buffers) {
        b.scores.reshape(x.num_rows(), self.experts.count);
        run.linear(x, false, vec![(self.router.matrix(run.weights), &mut b.scores)]);
        if let Some(bias) = &self.router_bias {
            let kernels = run.kernels;
            b.scores.for_each(run.pool, |_, row| kernels.add_to(row, bias));
        }
    }

    /// out = Σ weight · expert(h) over the experts of each row, the best first, then the shared expert.
    fn run(&self, run: &mut Run, h: &Rows, out: &mut Rows, b: &mut Buffers) {
        let (kernels, weights, experts, tokens) = (run.kernels, run.weights, &self.experts, h.num_rows());
        if !self.rule.early_router {
            self.score(run, h, b);
        }
        let choices: Vec<_> = (0..tokens).map(|i| choose(b.scores.row(i), self.choice_bias.as_deref(), experts)).collect();
        let routing = Routing::new(&choices, experts);
        if let Some((dense, router)) = &self.shared {
            dense.widen(run, h, b);
            b.shared.reshape(tokens, out.width());
            run.linear(&b.gate, false, vec![(dense.down.matrix(weights), &mut b.shared)]);
            if let Some(router) = router {
                b.shared_score.reshape(tokens, 1);
                run.linear(h, false, vec![(router.matrix(weights), &mut b.shared_score)]);
            }
        }
        let assignments = routing.tokens.len();
        b.expert_input.reshape(assignments, h.width());
        b.expert_gate.reshape(assignments, experts.ffn_dim);
        b.expert_up.reshape(assignments, experts.ffn_dim);
        b.expert_output.reshape(assignments, out.width());
        b.expert_input.for_each(run.pool, |i, row| row.copy_from_slice(h.row(routing.tokens[i])));
        if self.rule.weigh_input {
            let weight_of = routing.weights(&choices, experts);
            b.expert_input.for_each(run.pool, |i, row| row.iter_mut().for_each(|x| *x *= weight_of[i]));
        }
        self.expand(run, &routing, b);
        let (gate, down) = (&b.expert_gate, &mut b.expert_output);
        kernels.products(run.pool, run.scratch, gate, false, &routing.jobs(weights, &[&self.down]), &mut [down]);
        self.add_bias(run, &routing, 2, down);
        out.resize(tokens);
        out.for_each(run.pool, |i, row| {
            row.fill(0.0);
            for (rank, (_, weight)) in choices[i].iter().enumerate() {
                let weight = if self.rule.weigh_input { 1.0 } else { *weight };
                let output = b.expert_output.row(routing.assignments[i * experts.used + rank]);
                row.iter_mut().zip(output).for_each(|(sum, x)| *sum += weight * x);
            }
            if let Some((_, router)) = &self.shared {
                let weight = if router.is_some() { sigmoid(b.shared_score.row(i)[0]) } else { 1.0 };
                row.iter_mut().zip(b.shared.row(i)).for_each(|(sum, x)| *sum += weight * x);
                if self.rule.mean_shared {
                    row.iter_mut().for_each(|sum| *sum *= 0.5);
                }
            }
        });
    }

    /// b.expert_gate = activation(gate) · up of each assignment's expert.
    fn expand(&self, run: &mut Run, routing: &Routing, b: &mut Buffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let (gate, up) = (&mut b.expert_gate, &mut b.expert_up);
        let Some(matrix) = &self.gate else {
            kernels.products(run.pool, run.scratch, &b.expert_input, false, &routing.jobs(weights, &[&self.up]), &mut [gate]);
            self.add_bias(run, routing, 1, gate);
            return gate.for_each(run.pool, |_, row| self.activate.apply(kernels, row));
        };
        let jobs = routing.jobs(weights, &[matrix, &self.up]);
        kernels.products(run.pool, run.scratch, &b.expert_input, false, &jobs, &mut [gate, up]);
        self.add_bias(run, routing, 0, gate);
        self.add_bias(run, routing, 1, up);
        gate.for_each(run.pool, |i, row| self.activate.gated(kernels, row, up.row(i)));
    }

    /// Adds the experts' biases of gate (0), up (1) or down (2).
    fn add_bias(&self, run: &mut Run, routing: &Routing, which: usize, rows: &mut Rows) {
        let Some(biases) = &self.biases[which] else { return };
        let (kernels, len) = (run.kernels, rows.width());
        rows.for_each(run.pool, |i, row| kernels.add_to(row, &biases[routing.expert_of(i) * len..][..len]));
    }
}
