//! Predicts, corrects and scales AltUp's streams.

use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{Correct, Match, Predict};
use model::spec::ALTUP_STREAMS as STREAMS;

pub struct PredictKernel {
    op: Predict,
    /// [streams, streams][streams] coefficients per element of the router
    coefficients: Vec<f32>,
}

impl PredictKernel {
    pub fn new(op: &Predict, tensors: &Tensors) -> Self {
        Self { op: *op, coefficients: tensors.vector(op.coefficients) }
    }
}

impl Kernel for PredictKernel {
    fn run(&self, step: &mut Step) {
        let mut streams = step.buffers.take(self.op.streams);
        let hidden = streams.width() / STREAMS;
        let router = step.buffers.rows(self.op.router);
        streams.for_each(step.pool, |i, row| {
            let factors: [[f32; STREAMS]; STREAMS] =
                std::array::from_fn(|to| std::array::from_fn(|from| coefficient(&self.coefficients, to * STREAMS + from, router.row(i))));
            for e in 0..hidden {
                let old: [f32; STREAMS] = std::array::from_fn(|stream| row[stream * hidden + e]);
                for (to, factors) in factors.iter().enumerate() {
                    row[to * hidden + e] += factors.iter().zip(old).map(|(factor, x)| factor * x).sum::<f32>();
                }
            }
        });
        step.buffers.put(self.op.streams, streams);
    }
}

pub struct CorrectKernel {
    op: Correct,
    /// [streams][streams]
    coefficients: Vec<f32>,
}

impl CorrectKernel {
    pub fn new(op: &Correct, tensors: &Tensors) -> Self {
        Self { op: *op, coefficients: tensors.vector(op.coefficients) }
    }
}

impl Kernel for CorrectKernel {
    fn run(&self, step: &mut Step) {
        let mut streams = step.buffers.take(self.op.streams);
        let hidden = streams.width() / STREAMS;
        let (x, router) = (step.buffers.rows(self.op.x), step.buffers.rows(self.op.router));
        streams.for_each(step.pool, |i, row| {
            let factors: [f32; STREAMS] = std::array::from_fn(|to| 1.0 + coefficient(&self.coefficients, to, router.row(i)));
            for (e, x) in x.row(i).iter().enumerate() {
                let difference = x - row[e];
                factors.iter().enumerate().for_each(|(to, factor)| row[to * hidden + e] += difference * factor);
            }
        });
        step.buffers.put(self.op.streams, streams);
    }
}

/// Row `row` of the coefficients times the router's output.
fn coefficient(coefficients: &[f32], row: usize, router: &[f32]) -> f32 {
    coefficients[row * STREAMS..][..STREAMS].iter().zip(router).map(|(coefficient, x)| coefficient * x).sum()
}

pub struct MatchKernel(pub Match);

impl Kernel for MatchKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.0;
        step.buffers.update(step.pool, op.to, [1, op.dim], |buffers, i, _, to| {
            let (from, like) = (buffers.head(op.from, (i, 0), op.dim), buffers.head(op.like, (i, 0), op.dim));
            let factor = magnitude(like) / magnitude(from);
            match op.add {
                true => to.iter_mut().zip(from).for_each(|(to, from)| *to += from * factor),
                false => to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor),
            }
        });
    }
}

/// The magnitude of a row. At least 1e-12, so that rows of zeros stay zeros.
fn magnitude(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12)
}
