//! Runs the experts' networks on the rows that were routed to them.

use super::activation::Activate;
use super::adapters::{AdaptedRows, Adapters, ChangedRow};
use super::matrix::Mat;
use super::routing::{Routing, Use};
use super::run::Run;
use super::simd::rows::Rows;
use crate::program::TensorId;
use crate::program::slices::{MAX_SLICES, tree};

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
}

/// The changes of the experts' matrices.
pub struct ExpertChanges<'a> {
    pub adapters: &'a Adapters,
    pub adapted: &'a AdaptedRows,
    /// The tensors of gate, up and down.
    pub tensors: [Option<TensorId>; 3],
}

impl ExpertChanges<'_> {
    /// The assignments of rows that adapters change.
    fn rows(&self, routing: &Routing) -> Vec<ChangedRow<'_>> {
        if self.adapted.is_empty() {
            return Vec::new();
        }
        let mut rows = self.adapted.changed_of(routing.tokens.iter().copied());
        rows.iter_mut().for_each(|row| row.matrix = routing.expert_of(row.at));
        rows
    }

    /// Changes the products of gate (0), up (1) or down (2).
    fn apply(&self, run: &mut Run, which: usize, rows: &[ChangedRow], (x, out): (&Rows, &mut Rows)) {
        if let Some(tensor) = self.tensors[which].filter(|_| !rows.is_empty()) {
            self.adapters.change((run.kernels, run.pool), tensor, rows, (x, out));
        }
    }
}

/// Elements that are added up at a time. The sums of eight eighths stay in L1.
const SUM_TILE: usize = 64;

impl ExpertBuffers {
    /// out = factor · Σ weight · output of each expert of a row, or out += it. Experts are added in ascending order within each eighth of
    /// their ids, and the eighths as a tree.
    pub fn sum(&self, uses: &[Use], out: &mut [f32], factor: f32, add: bool) {
        for (tile, out) in out.chunks_mut(SUM_TILE).enumerate() {
            let mut eighths = [[0f32; SUM_TILE]; MAX_SLICES];
            for used in uses {
                let (weight, output) = (used.weight * factor, &self.output.row(used.assignment)[tile * SUM_TILE..][..out.len()]);
                eighths[used.eighth].iter_mut().zip(output).for_each(|(sum, x)| *sum += weight * x);
            }
            for (i, out) in out.iter_mut().enumerate() {
                let sum = tree(&std::array::from_fn::<f32, MAX_SLICES, _>(|eighth| eighths[eighth][i]));
                *out = if add { *out + sum } else { sum };
            }
        }
    }
}

impl Stacks {
    /// Runs the experts of each row of h. With `weigh_input`, the weights scale the experts' inputs instead of their outputs.
    pub fn run(&self, run: &mut Run, h: &Rows, (routing, weigh_input, changes): (&Routing, bool, &ExpertChanges), b: &mut ExpertBuffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let assignments = routing.tokens.len();
        b.input.reshape(assignments, h.width());
        b.gate.reshape(assignments, self.dim);
        b.up.reshape(assignments, self.dim);
        b.output.reshape(assignments, h.width());
        b.input.for_each(run.pool, |i, row| row.copy_from_slice(h.row(routing.tokens[i])));
        if weigh_input {
            let weight_of = routing.weights();
            b.input.for_each(run.pool, |i, row| row.iter_mut().for_each(|x| *x *= weight_of[i]));
        }
        let changed = changes.rows(routing);
        self.expand(run, routing, (changes, &changed), b);
        let ExpertBuffers { gate, output, .. } = b;
        kernels.products(run.pool, run.scratch, gate, false, &routing.jobs(weights, &[&self.down]), &mut [output]);
        changes.apply(run, 2, &changed, (gate, output));
        self.add_bias(run, routing, 2, output);
    }

    /// b.gate = activation(gate) · up for each assignment's expert.
    fn expand(&self, run: &mut Run, routing: &Routing, (changes, changed): (&ExpertChanges, &[ChangedRow]), b: &mut ExpertBuffers) {
        let (kernels, weights) = (run.kernels, run.weights);
        let ExpertBuffers { input, gate, up, .. } = b;
        let Some(matrix) = &self.gate else {
            kernels.products(run.pool, run.scratch, input, false, &routing.jobs(weights, &[&self.up]), &mut [gate]);
            changes.apply(run, 1, changed, (input, gate));
            self.add_bias(run, routing, 1, gate);
            return gate.for_each(run.pool, |_, row| self.activate.apply(kernels, row));
        };
        let jobs = routing.jobs(weights, &[matrix, &self.up]);
        kernels.products(run.pool, run.scratch, input, false, &jobs, &mut [gate, up]);
        changes.apply(run, 0, changed, (input, gate));
        changes.apply(run, 1, changed, (input, up));
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
