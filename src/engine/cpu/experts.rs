//! Runs the experts' networks on the rows that were routed to them.

use super::activation::Activate;
use super::matrix::Mat;
use super::routing::Routing;
use super::run::Run;
use super::simd::rows::Rows;
use model::Experts;

/// The matrices of some experts, as stacks.
pub struct Stacks {
    /// None if the activation is applied to `up`.
    pub gate: Option<Mat>,
    pub up: Mat,
    pub down: Mat,
    /// [experts, rows] biases of gate, up and down
    pub biases: [Option<Vec<f32>>; 3],
    pub activate: Activate,
    /// The inner dimension of each expert.
    pub dim: usize,
}

/// The activations of a step. [`Routing`] explains assignments.
#[derive(Default)]
pub struct ExpertBuffers {
    input: Rows,  // [num_assignments, hidden]
    gate: Rows,   // [num_assignments, dim]
    up: Rows,     // [num_assignments, dim]
    output: Rows, // [num_assignments, hidden]
    /// [num_tokens, used] each row's assignments with their weights, the best expert first
    weights: Vec<(usize, f32)>,
    used: usize,
}

impl ExpertBuffers {
    /// out += factor · Σ weight · output of each expert of row `i`
    pub fn add_to(&self, i: usize, out: &mut [f32], factor: f32) {
        for &(assignment, weight) in &self.weights[i * self.used..][..self.used] {
            let weight = weight * factor;
            out.iter_mut().zip(self.output.row(assignment)).for_each(|(sum, x)| *sum += weight * x);
        }
    }
}

impl Stacks {
    /// Runs the experts of each row of h. With `weigh_input`, the weights scale the experts' inputs instead of their outputs.
    pub fn run(&self, run: &mut Run, h: &Rows, choices: (&[Vec<(usize, f32)>], &Experts), weigh_input: bool, b: &mut ExpertBuffers) {
        let (kernels, weights, (choices, experts)) = (run.kernels, run.weights, choices);
        let routing = Routing::new(choices, experts);
        let assignments = routing.tokens.len();
        b.input.reshape(assignments, h.width());
        b.gate.reshape(assignments, self.dim);
        b.up.reshape(assignments, self.dim);
        b.output.reshape(assignments, h.width());
        b.input.for_each(run.pool, |i, row| row.copy_from_slice(h.row(routing.tokens[i])));
        if weigh_input {
            let weight_of = routing.weights(choices, experts);
            b.input.for_each(run.pool, |i, row| row.iter_mut().for_each(|x| *x *= weight_of[i]));
        }
        self.expand(run, &routing, b);
        let ExpertBuffers { gate, output, .. } = b;
        kernels.products(run.pool, run.scratch, gate, false, &routing.jobs(weights, &[&self.down]), &mut [output]);
        self.add_bias(run, &routing, 2, output);
        let weight = |(_, weight): &(usize, f32)| if weigh_input { 1.0 } else { *weight };
        b.weights = routing.assignments.iter().copied().zip(choices.iter().flatten().map(weight)).collect();
        b.used = experts.used;
    }

    /// b.gate = activation(gate) · up for each assignment's expert.
    fn expand(&self, run: &mut Run, routing: &Routing, b: &mut ExpertBuffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let ExpertBuffers { input, gate, up, .. } = b;
        let Some(matrix) = &self.gate else {
            kernels.products(run.pool, run.scratch, input, false, &routing.jobs(weights, &[&self.up]), &mut [gate]);
            self.add_bias(run, routing, 1, gate);
            return gate.for_each(run.pool, |_, row| self.activate.apply(kernels, row));
        };
        let jobs = routing.jobs(weights, &[matrix, &self.up]);
        kernels.products(run.pool, run.scratch, input, false, &jobs, &mut [gate, up]);
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
