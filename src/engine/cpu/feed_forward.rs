//! The feed-forward layer: dense, or routed to experts.

use super::routing::{Routing, choose};
use super::run::Run;
use super::simd::norm::Norm;
use super::simd::rows::Rows;
use super::weights::{Dense, FeedForward, Routed};
use model::ModelSpec;

/// Activations of a step. See [`Routing`] for assignments.
pub struct Buffers {
    gate: Rows,          // [num_tokens, ffn]
    up: Rows,            // [num_tokens, ffn]
    shared: Rows,        // [num_tokens, hidden] output of the shared expert
    shared_score: Rows,  // [num_tokens, 1]
    scores: Rows,        // [num_tokens, experts]
    expert_input: Rows,  // [num_assignments, hidden]
    expert_gate: Rows,   // [num_assignments, expert ffn]
    expert_up: Rows,     // [num_assignments, expert ffn]
    expert_output: Rows, // [num_assignments, hidden]
}

impl Buffers {
    pub fn new(spec: &ModelSpec) -> Self {
        let experts = spec.experts.unwrap_or_default();
        let dense = if spec.experts.is_some() { experts.shared_ffn_dim } else { spec.ffn_dim };
        Self {
            gate: Rows::new(dense),
            up: Rows::new(dense),
            shared: Rows::new(spec.hidden_dim),
            shared_score: Rows::new(1),
            scores: Rows::new(experts.count),
            expert_input: Rows::new(spec.hidden_dim),
            expert_gate: Rows::new(experts.ffn_dim),
            expert_up: Rows::new(experts.ffn_dim),
            expert_output: Rows::new(spec.hidden_dim),
        }
    }

    /// x += layer(h). If there is a norm, it is applied to layer(h) first. `h` is overwritten.
    pub fn run(&mut self, run: &mut Run, layer: &FeedForward, (x, h): (&mut Rows, &mut Rows), norm: &Option<Norm>) {
        match layer {
            FeedForward::Dense(dense) => {
                self.widen(run, dense, h);
                run.branch((dense.down.matrix(run.weights), &self.gate), (x, h), (dense.down_bias.as_deref(), norm));
            }
            FeedForward::Routed(routed) => {
                self.routed(run, routed, h);
                run.add((x, h), norm);
            }
        }
    }

    /// gate = activation(gate(h)) · up(h), or activation(up(h)) for layers without a gate.
    fn widen(&mut self, run: &mut Run, dense: &Dense, h: &Rows) {
        let (kernels, weights, activation) = (run.kernels, run.weights, run.weights.spec.arch.activation);
        let bias = |row: &mut [f32], bias: &Option<Vec<f32>>| bias.iter().for_each(|bias| kernels.add_to(row, bias));
        self.gate.resize(h.num_rows());
        let Some(gate) = &dense.gate else {
            run.linear(h, false, vec![(dense.up.matrix(weights), &mut self.gate)]);
            return self.gate.for_each(run.pool, |_, row| {
                bias(row, &dense.up_bias);
                kernels.activate(row, activation);
            });
        };
        self.up.resize(h.num_rows());
        run.linear(h, false, vec![(gate.matrix(weights), &mut self.gate), (dense.up.matrix(weights), &mut self.up)]);
        if dense.up_bias.is_some() {
            self.up.for_each(run.pool, |_, row| bias(row, &dense.up_bias));
        }
        self.gate.for_each(run.pool, |i, row| {
            bias(row, &dense.gate_bias);
            kernels.gated(row, self.up.row(i), activation);
        });
    }

    /// h = Σ weight · expert(h) over the experts of each row, the likeliest first, then the shared expert.
    fn routed(&mut self, run: &mut Run, routed: &Routed, h: &mut Rows) {
        let (kernels, weights, experts, tokens) = (run.kernels, run.weights, &routed.experts, h.num_rows());
        self.scores.resize(tokens);
        run.linear(h, false, vec![(routed.router.matrix(weights), &mut self.scores)]);
        let choices: Vec<_> = (0..tokens).map(|i| choose(self.scores.row(i), experts)).collect();
        let routing = Routing::new(&choices, experts);
        if let Some((router, dense)) = &routed.shared {
            self.widen(run, dense, h);
            self.shared.resize(tokens);
            self.shared_score.resize(tokens);
            run.linear(&self.gate, false, vec![(dense.down.matrix(weights), &mut self.shared)]);
            run.linear(h, false, vec![(router.matrix(weights), &mut self.shared_score)]);
        }
        for rows in [&mut self.expert_input, &mut self.expert_gate, &mut self.expert_up, &mut self.expert_output] {
            rows.resize(routing.tokens.len());
        }
        self.expert_input.for_each(run.pool, |i, row| row.copy_from_slice(h.row(routing.tokens[i])));
        let (gate, up, down) = (&mut self.expert_gate, &mut self.expert_up, &mut self.expert_output);
        let jobs = routing.jobs(weights, &[&routed.gate, &routed.up]);
        kernels.products(run.pool, run.scratch, &self.expert_input, false, &jobs, &mut [gate, up]);
        gate.for_each(run.pool, |i, row| kernels.gated(row, up.row(i), weights.spec.arch.activation));
        kernels.products(run.pool, run.scratch, gate, false, &routing.jobs(weights, &[&routed.down]), &mut [down]);
        h.for_each(run.pool, |i, row| {
            row.fill(0.0);
            for (rank, (_, weight)) in choices[i].iter().enumerate() {
                let output = down.row(routing.assignments[i * experts.used + rank]);
                row.iter_mut().zip(output).for_each(|(sum, x)| *sum += weight * x);
            }
            if routed.shared.is_some() {
                let weight = 1.0 / (1.0 + (-self.shared_score.row(i)[0]).exp());
                row.iter_mut().zip(self.shared.row(i)).for_each(|(sum, x)| *sum += weight * x);
            }
        });
    }
}
