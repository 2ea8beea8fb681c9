//! Routes rows to experts, and adds what the experts give.

use super::super::activation::{Activate, sigmoid};
use super::super::experts::Stacks;
use super::super::matrix::Mat;
use super::super::routing::{choose, choose_adjugates};
use super::super::run::Run;
use super::super::simd::rows::Rows;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::EngineError;
use crate::program::{Experts, SharedExpert};
use model::Experts as Spec;

pub struct ExpertsKernel {
    op: Experts,
    choice_bias: Option<Vec<f32>>,
    /// [experts] factors of the experts' outputs
    output_scales: Option<Vec<f32>>,
    stacks: Stacks,
    /// The output of the expert that all rows share, with its router of one row if it has one.
    shared: Option<(SharedExpert, Option<Mat>)>,
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
        let shared = op
            .shared
            .map(|shared| -> Result<_, EngineError> { Ok((shared, shared.router.map(|router| tensors.matrix(router)).transpose()?)) });
        let (choice_bias, output_scales) = (tensors.optional(op.choice_bias), tensors.optional(op.output_scales));
        Ok(Self { op: *op, choice_bias, output_scales, stacks, shared: shared.transpose()? })
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

    /// out += weight · the shared expert
    fn add_shared(&self, step: &mut Step, score: &mut Rows, out: &mut Rows) {
        let Some((shared, router)) = &self.shared else { return };
        if let Some(router) = router {
            score.reshape(out.num_rows(), 1);
            let input = step.buffers.rows(shared.input);
            step.kernels.linear(step.pool, step.scratch, input, false, vec![(router.matrix(step.weights), &mut *score)]);
        }
        let rows = step.buffers.rows(shared.rows);
        out.for_each(step.pool, |i, row| {
            let weight = if router.is_some() { sigmoid(score.row(i)[0]) } else { 1.0 };
            row.iter_mut().zip(rows.row(i)).for_each(|(sum, x)| *sum += weight * x);
            if self.op.mean_shared {
                row.iter_mut().for_each(|sum| *sum *= 0.5);
            }
        });
    }
}

impl Kernel for ExpertsKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        let choices = self.choices(step.buffers.rows(op.scores));
        let all = match op.adjugate {
            true => Spec { count: op.experts.num_chunks(), used: choices.first().map_or(0, Vec::len), ..op.experts },
            false => op.experts,
        };
        let mut b = std::mem::take(&mut step.buffers.experts);
        let mut out = step.buffers.take(op.out);
        // adjugate experts read what they add to
        let input = if op.input == op.out { &out } else { step.buffers.rows(op.input) };
        let run = &mut Run { kernels: step.kernels, pool: step.pool, scratch: step.scratch, weights: step.weights };
        self.stacks.run(run, input, (&choices, &all), op.weigh_input, &mut b.experts);
        if !op.add {
            out.for_each(step.pool, |_, row| row.fill(0.0));
        }
        out.for_each(step.pool, |i, row| b.experts.add_to(i, row, op.factor));
        self.add_shared(step, &mut b.shared_score, &mut out);
        step.buffers.put(op.out, out);
        step.buffers.experts = b;
    }
}
