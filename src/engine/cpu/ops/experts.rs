//! Routes rows to experts, and adds what the experts give.

use super::super::activation::{Activate, sigmoid};
use super::super::experts::{ExpertChanges, Stacks};
use super::super::matrix::Mat;
use super::super::routing::{Routing, choose, choose_adjugates};
use super::super::run::Run;
use super::super::simd::rows::Rows;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::EngineError;
use crate::program::{AddShared, Experts, TensorId};

pub struct ExpertsKernel {
    op: Experts,
    choice_bias: Option<Vec<f32>>,
    /// [experts] factors of the experts' outputs
    output_scales: Option<Vec<f32>>,
    stacks: Stacks,
    /// The tensors of gate, up and down.
    tensors: [Option<TensorId>; 3],
}

impl ExpertsKernel {
    pub fn new(op: &Experts, tensors: &Tensors) -> Result<Self, EngineError> {
        let stacks = Stacks {
            gate: op.gate.map(|gate| tensors.matrix(gate)).transpose()?,
            up: tensors.matrix(op.up)?,
            down: tensors.matrix(op.down)?,
            biases: op.biases.map(|bias| tensors.optional(bias)),
            activate: Activate { kind: op.activation, xielu: [0.0; 4] },
            dim: op.dim,
        };
        let (choice_bias, output_scales) = (tensors.optional(op.choice_bias), tensors.optional(op.output_scales));
        Ok(Self { op: *op, choice_bias, output_scales, stacks, tensors: [op.gate, Some(op.up), Some(op.down)] })
    }

    /// Each row's experts with their weights, the best first.
    fn choices(&self, scores: &Rows) -> Vec<Vec<(usize, f32)>> {
        let spec = &self.op.experts;
        let rows = 0..scores.num_rows();
        if self.op.adjugate {
            return rows.map(|i| choose_adjugates(scores.row(i), spec)).collect();
        }
        let mut choices: Vec<_> = rows.map(|i| choose(scores.row(i), self.choice_bias.as_deref(), spec)).collect();
        if let Some(scales) = &self.output_scales {
            choices.iter_mut().flatten().for_each(|(expert, weight)| *weight *= scales[*expert]);
        }
        choices
    }
}

impl Kernel for ExpertsKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        let mut routing = Routing::new(&self.choices(step.buffers.rows(op.scores)), op.own);
        let mut b = std::mem::take(&mut step.buffers.experts);
        let mut out = step.buffers.take(op.out);
        // adjugate experts read what they add to
        let input = if op.input == op.out { &out } else { step.buffers.rows(op.input) };
        let run = &mut Run { kernels: step.kernels, pool: step.pool, scratch: step.scratch, weights: step.weights };
        let changes = ExpertChanges { adapters: step.adapters, adapted: step.adapted, tensors: self.tensors };
        self.stacks.run(run, input, (&routing, op.weigh_input, &changes), &mut b);
        if op.weigh_input {
            routing.uses.iter_mut().for_each(|of| of.weight = 1.0);
        }
        out.for_each(step.pool, |i, row| b.sum(routing.of_row(i), row, op.factor, op.add));
        step.buffers.put(op.out, out);
        step.buffers.experts = b;
    }
}

pub struct AddSharedKernel {
    op: AddShared,
    /// One row.
    router: Option<Mat>,
}

impl AddSharedKernel {
    pub fn new(op: &AddShared, tensors: &Tensors) -> Result<Self, EngineError> {
        Ok(Self { op: *op, router: op.router.map(|router| tensors.matrix(router)).transpose()? })
    }
}

impl Kernel for AddSharedKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        let mut score = std::mem::take(&mut step.buffers.shared_score);
        let mut to = step.buffers.take(op.to);
        if let Some(router) = &self.router {
            score.reshape(to.num_rows(), 1);
            let input = step.buffers.rows(op.input);
            step.kernels.linear(step.pool, step.scratch, input, false, vec![(router.matrix(step.weights), &mut score)]);
            if let Some(tensor) = op.router {
                step.adapters.change((step.kernels, step.pool), tensor, &step.adapted.changed(), (input, &mut score));
            }
        }
        let from = step.buffers.rows(op.from);
        to.for_each(step.pool, |i, row| {
            let weight = if self.router.is_some() { sigmoid(score.row(i)[0]) } else { 1.0 };
            row.iter_mut().zip(from.row(i)).for_each(|(sum, x)| *sum += weight * x);
            if op.mean {
                row.iter_mut().for_each(|sum| *sum *= 0.5);
            }
        });
        step.buffers.put(op.to, to);
        step.buffers.shared_score = score;
    }
}
