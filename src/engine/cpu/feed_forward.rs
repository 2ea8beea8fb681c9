//! Runs the feed-forward part of a layer: dense, routed to experts, or both.

use super::activation::{Activate, sigmoid};
use super::experts::{ExpertBuffers, Stacks};
use super::loader::{Loader, Mat};
use super::routing::{choose, choose_adjugates};
use super::run::{Finish, Run, Stream};
use super::simd::norm::Norm;
use super::simd::rows::Rows;
use crate::EngineError;
use model::arch::{Beside, ExpertRule};
use model::{Experts, FeedForward as FeedForwardSpec, TensorRole};

/// The three matrices of a feed-forward network.
struct Dense {
    /// None if the activation is applied to `up`.
    gate: Option<Mat>,
    up: Mat,
    down: Mat,
    gate_bias: Option<Vec<f32>>,
    up_bias: Option<Vec<f32>>,
    down_bias: Option<Vec<f32>>,
    /// A norm of the activation's output.
    sub_norm: Option<Norm>,
    /// Divisors of the activation's output.
    act_scales: Option<Vec<f32>>,
    activate: Activate,
    /// See `LayerSpec::gate_cutoff`.
    cutoff: Option<f32>,
    dim: usize,
}

/// The router, and the experts that it chooses from.
struct Routed {
    experts: Experts,
    rule: ExpertRule,
    router: Mat,
    router_bias: Option<Vec<f32>>,
    choice_bias: Option<Vec<f32>>,
    stacks: Stacks,
    /// [experts] factors of the experts' outputs
    output_scales: Option<Vec<f32>>,
    /// The expert that all rows share, with its router of one row if it has one.
    shared: Option<(Dense, Option<Mat>)>,
    /// Adjugate experts, which see the output of the others (GroveMoE).
    adjugates: Option<Stacks>,
}

/// Norms of experts in parallel with a dense part. Router and experts see the stream after attention.
struct OwnNorms {
    router: Norm,
    experts: Norm,
    behind_dense: Norm,
    behind_experts: Norm,
}

pub struct FeedForward {
    dense: Option<Dense>,
    routed: Option<Routed>,
    norms: Option<OwnNorms>,
}

/// The activations of a step.
#[derive(Default)]
pub struct FfnBuffers {
    gate: Rows,         // [num_tokens, ffn]
    up: Rows,           // [num_tokens, ffn]
    shared: Rows,       // [num_tokens, hidden] output of the shared expert
    shared_score: Rows, // [num_tokens, 1]
    dense: Rows,        // [num_tokens, hidden] output of the dense part in parallel with experts
    own: Rows,          // [num_tokens, hidden] the router's input, then the experts' input, after norms of their own
    scores: Rows,       // [num_tokens, experts]
    expert: ExpertBuffers,
}

impl FeedForward {
    /// Loads a layer. None if the layer has no feed-forward part.
    pub fn load(loader: Loader, layer: usize) -> Result<Option<Self>, EngineError> {
        use TensorRole::*;
        let (spec, of) = (&loader.weights.spec, &loader.weights.spec.layers[layer].ffn);
        if *of == FeedForwardSpec::None {
            return Ok(None);
        }
        let dense = of.dense().map(|dim| Dense::load(loader, layer, dim)).transpose()?;
        let Some(experts) = of.experts() else { return Ok(Some(Self { dense, routed: None, norms: None })) };
        let shared = if experts.shared_ffn_dim > 0 {
            let shared = Dense::of(loader, layer, [FfnGateShexp, FfnUpShexp, FfnDownShexp], experts.shared_ffn_dim)?;
            Some((shared, loader.optional_mat(SharedRouter, layer)?))
        } else {
            None
        };
        let activate = Activate { kind: spec.arch.experts.activation.unwrap_or(spec.arch.activation), xielu: [0.0; 4] };
        let routed = Routed {
            experts: *experts,
            rule: spec.arch.experts,
            router: loader.mat(FfnRouter, layer)?,
            router_bias: loader.optional(FfnRouterBias, layer),
            choice_bias: loader.optional(ExpertChoiceBias, layer),
            stacks: Stacks {
                gate: loader.optional_mat(FfnGateExps, layer)?,
                up: loader.mat(FfnUpExps, layer)?,
                down: loader.mat(FfnDownExps, layer)?,
                biases: [FfnGateExpsBias, FfnUpExpsBias, FfnDownExpsBias].map(|role| loader.optional(role, layer)),
                activate,
                dim: experts.ffn_dim,
            },
            output_scales: loader.optional(FfnDownExpsScale, layer),
            shared,
            adjugates: (experts.chunk_ffn_dim > 0).then(|| Stacks::adjugates(loader, layer, experts, activate)).transpose()?,
        };
        let normed = dense.is_some() && spec.arch.experts.beside == Beside::Normed;
        let norms = normed.then(|| OwnNorms::load(loader, layer)).transpose()?;
        Ok(Some(Self { dense, routed: Some(routed), norms }))
    }

    /// Computes the router's scores from the layer's input before attention, in architectures whose router sees that input.
    pub fn look_ahead(&self, run: &mut Run, x: &Rows, b: &mut FfnBuffers) {
        if let Some(routed) = self.routed.as_ref().filter(|routed| routed.rule.early_router) {
            routed.score(run, x, b);
        }
    }

    /// x += layer(h). `early` is the experts' input in architectures whose experts see the layer's input before attention.
    pub fn run(&self, run: &mut Run, (h, early): (&Rows, &Rows), stream: &mut Stream, finish: Finish, b: &mut FfnBuffers) {
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
        if let Some(norms) = &self.norms {
            routed.run_behind(run, norms, stream, b);
        } else {
            let input = if matches!(beside, Some((_, Beside::Residual))) { early } else { h };
            if !routed.rule.early_router {
                routed.score(run, input, b);
            }
            routed.run(run, input, stream.branch, b);
        }
        if let Some((dense, Beside::Mean | Beside::Normed)) = beside {
            dense.widen(run, h, b);
            b.dense.reshape(h.num_rows(), stream.branch.width());
            run.linear(&b.gate, false, vec![(dense.down.matrix(run.weights), &mut b.dense)]);
            if let Some(norms) = &self.norms {
                let kernels = run.kernels;
                b.dense.for_each(run.pool, |_, row| kernels.norm_in_place(row, &norms.behind_dense));
            }
            let factor = if self.norms.is_some() { 1.0 } else { std::f32::consts::FRAC_1_SQRT_2 };
            stream.branch.for_each(run.pool, |i, row| row.iter_mut().zip(b.dense.row(i)).for_each(|(sum, x)| *sum = (*sum + x) * factor));
        }
        run.add(stream, finish);
    }
}

impl OwnNorms {
    fn load(loader: Loader, layer: usize) -> Result<Self, EngineError> {
        let mut router = loader.rms_norm(TensorRole::FfnRouterScale, layer)?;
        let scale = 1.0 / (loader.weights.spec.hidden_dim as f32).sqrt();
        router.weight.iter_mut().for_each(|weight| *weight *= scale);
        Ok(Self {
            router,
            experts: loader.rms_norm(TensorRole::FfnNormExps, layer)?,
            behind_dense: loader.rms_norm(TensorRole::PostFfnNorm1, layer)?,
            behind_experts: loader.rms_norm(TensorRole::PostFfnNorm2, layer)?,
        })
    }
}

impl Dense {
    /// Loads the dense part of a layer.
    fn load(loader: Loader, layer: usize, dim: usize) -> Result<Self, EngineError> {
        use TensorRole::*;
        let has_norm = loader.weights.get(FfnSubNorm, layer).is_some();
        Ok(Self {
            gate_bias: loader.optional(FfnGateBias, layer),
            up_bias: loader.optional(FfnUpBias, layer),
            down_bias: loader.optional(FfnDownBias, layer),
            sub_norm: if has_norm { Some(loader.rms_norm(FfnSubNorm, layer)?) } else { None },
            act_scales: loader.optional(FfnActScales, layer),
            cutoff: loader.weights.spec.layers[layer].gate_cutoff,
            ..Self::of(loader, layer, [FfnGate, FfnUp, FfnDown], dim)?
        })
    }

    /// Loads the three matrices alone. The gate's matrix may be missing.
    fn of(loader: Loader, layer: usize, [gate, up, down]: [TensorRole; 3], dim: usize) -> Result<Self, EngineError> {
        let spec = &loader.weights.spec;
        let xielu = spec.xielu.get(layer).copied().unwrap_or_default();
        Ok(Self {
            gate: loader.optional_mat(gate, layer)?,
            up: loader.mat(up, layer)?,
            down: loader.mat(down, layer)?,
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            sub_norm: None,
            act_scales: None,
            activate: Activate { kind: spec.arch.activation, xielu },
            cutoff: None,
            dim,
        })
    }

    /// b.gate = activation(gate(h)) · up(h), or activation(up(h)) for layers without a gate. Also applies everything else that precedes the
    /// down projection.
    fn widen(&self, run: &mut Run, h: &Rows, b: &mut FfnBuffers) {
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
                if let Some(cutoff) = self.cutoff {
                    keep_largest(row, cutoff);
                }
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
    /// Computes the router's score of every expert.
    fn score(&self, run: &mut Run, x: &Rows, b: &mut FfnBuffers) {
        b.scores.reshape(x.num_rows(), self.experts.count);
        run.linear(x, false, vec![(self.router.matrix(run.weights), &mut b.scores)]);
        if let Some(bias) = &self.router_bias {
            let kernels = run.kernels;
            b.scores.for_each(run.pool, |_, row| kernels.add_to(row, bias));
        }
    }

    /// out = norm(experts(norm(stream))), where router and experts have norms of their own.
    fn run_behind(&self, run: &mut Run, norms: &OwnNorms, stream: &mut Stream, b: &mut FfnBuffers) {
        let mut own = std::mem::take(&mut b.own);
        own.reshape(stream.x.num_rows(), stream.x.width());
        run.norm(&mut own, stream.x, &norms.router);
        self.score(run, &own, b);
        run.norm(&mut own, stream.x, &norms.experts);
        self.run(run, &own, stream.branch, b);
        b.own = own;
        let kernels = run.kernels;
        stream.branch.for_each(run.pool, |_, row| kernels.norm_in_place(row, &norms.behind_experts));
    }

    /// out = Σ weight · expert(h) over the experts that the scores choose for each row, the best first, then the shared expert.
    fn run(&self, run: &mut Run, h: &Rows, out: &mut Rows, b: &mut FfnBuffers) {
        let (weights, experts, tokens) = (run.weights, &self.experts, h.num_rows());
        let mut choices: Vec<_> = (0..tokens).map(|i| choose(b.scores.row(i), self.choice_bias.as_deref(), experts)).collect();
        if let Some(scales) = &self.output_scales {
            choices.iter_mut().flatten().for_each(|(expert, weight)| *weight *= scales[*expert]);
        }
        if let Some((dense, router)) = &self.shared {
            dense.widen(run, h, b);
            b.shared.reshape(tokens, out.width());
            run.linear(&b.gate, false, vec![(dense.down.matrix(weights), &mut b.shared)]);
            if let Some(router) = router {
                b.shared_score.reshape(tokens, 1);
                run.linear(h, false, vec![(router.matrix(weights), &mut b.shared_score)]);
            }
        }
        out.resize(tokens);
        out.for_each(run.pool, |_, row| row.fill(0.0));
        self.stacks.run(run, h, (&choices, experts), self.rule.weigh_input, &mut b.expert);
        out.for_each(run.pool, |i, row| b.expert.add_to(i, row, 1.0));
        if let Some(adjugates) = &self.adjugates {
            let choices: Vec<_> = (0..tokens).map(|i| choose_adjugates(b.scores.row(i), experts)).collect();
            let all = Experts { count: experts.num_chunks(), used: choices.first().map_or(0, Vec::len), ..*experts };
            adjugates.run(run, out, (&choices, &all), false, &mut b.expert);
            out.for_each(run.pool, |i, row| b.expert.add_to(i, row, experts.chunk_scale));
        }
        if let Some((_, router)) = &self.shared {
            out.for_each(run.pool, |i, row| {
                let weight = if router.is_some() { sigmoid(b.shared_score.row(i)[0]) } else { 1.0 };
                row.iter_mut().zip(b.shared.row(i)).for_each(|(sum, x)| *sum += weight * x);
                if self.rule.mean_shared {
                    row.iter_mut().for_each(|sum| *sum *= 0.5);
                }
            });
        }
    }
}

/// row = max(row − (mean + cutoff · deviation), 0)
fn keep_largest(row: &mut [f32], cutoff: f32) {
    let count = row.len() as f32;
    let mean = row.iter().sum::<f32>() / count;
    let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / (count - 1.0).max(1.0);
    let least = mean + cutoff * variance.sqrt();
    // the product keeps a NaN visible
    row.iter_mut().for_each(|x| *x = (*x - least).max(0.0) + 0.0 * *x);
}
