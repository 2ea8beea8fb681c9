//! AltUp (Baykal et al. 2023) and LAuReL (Menghani et al. 2024): keeps several residual streams, of which a layer computes one and predicts
//! the others (Gemma 3n). Stream 0 is the computed one.

use super::loader::{Loader, Mat};
use super::run::Run;
use super::simd::norm::Norm;
use super::simd::rows::Rows;
use crate::EngineError;
use model::TensorRole;
use model::arch::Block;
use model::spec::ALTUP_STREAMS as STREAMS;

/// The matrices that make the streams from an embedding and merge them into one row at the end.
pub struct Altup {
    /// [streams − 1] matrices
    split: Mat,
    merge: Mat,
}

/// The weights of a layer for its streams.
pub struct AltupLayer {
    /// The weights include the router's factor of 1 / hidden.
    router_norm: Norm,
    router: Mat,
    /// [streams, streams][streams] coefficients per element of the router
    predict: Vec<f32>,
    /// [streams][streams]
    correct: Vec<f32>,
    /// Factors of stream 0 where it enters the per-layer part.
    correct_scale: Vec<f32>,
    /// A low-rank residual connection.
    laurel: [Mat; 2],
    laurel_norm: Norm,
}

/// The activations of a step.
#[derive(Default)]
pub struct AltupBuffers {
    streams: Rows, // [num_tokens, streams · hidden]
    one: Rows,     // [num_tokens, hidden] one stream
    other: Rows,   // [num_tokens, hidden]
    router: Rows,  // [num_tokens, streams]
    low: Rows,     // [num_tokens, rank]
    laurel: Rows,  // [num_tokens, hidden]
}

impl Altup {
    /// Loads the matrices. None if the model has one stream.
    pub fn load(loader: Loader) -> Result<Option<Self>, EngineError> {
        if loader.weights.spec.block != Block::Altup {
            return Ok(None);
        }
        Ok(Some(Self { split: loader.mat(TensorRole::AltupProj, 0)?, merge: loader.mat(TensorRole::AltupUnembdProj, 0)? }))
    }

    /// Makes the streams: x, and projections of x that are scaled to the magnitude of x.
    pub fn begin(&self, run: &mut Run, x: &Rows, b: &mut AltupBuffers) {
        let (n, hidden) = (x.num_rows(), x.width());
        b.streams.reshape(n, STREAMS * hidden);
        b.streams.for_each(run.pool, |i, row| row[..hidden].copy_from_slice(x.row(i)));
        b.other.reshape(n, hidden);
        for stream in 1..STREAMS {
            run.linear(x, false, vec![(self.split.expert(run.weights, stream - 1, STREAMS - 1), &mut b.other)]);
            b.streams.for_each(run.pool, |i, row| {
                let factor = magnitude(x.row(i)) / magnitude(b.other.row(i));
                row[stream * hidden..][..hidden].iter_mut().zip(b.other.row(i)).for_each(|(to, from)| *to = from * factor);
            });
        }
    }

    /// x = the mean of stream 0 and of projections of the other streams that are scaled to its magnitude.
    pub fn end(&self, run: &mut Run, x: &mut Rows, b: &mut AltupBuffers) {
        let (n, hidden) = (x.num_rows(), x.width());
        x.for_each(run.pool, |i, row| row.copy_from_slice(&b.streams.row(i)[..hidden]));
        b.one.reshape(n, hidden);
        b.other.reshape(n, hidden);
        for stream in 1..STREAMS {
            b.one.for_each(run.pool, |i, row| row.copy_from_slice(&b.streams.row(i)[stream * hidden..][..hidden]));
            run.linear(&b.one, false, vec![(self.merge.expert(run.weights, stream - 1, STREAMS - 1), &mut b.other)]);
            x.for_each(run.pool, |i, row| {
                let factor = magnitude(&b.streams.row(i)[..hidden]) / magnitude(b.other.row(i));
                row.iter_mut().zip(b.other.row(i)).for_each(|(sum, x)| *sum += x * factor);
            });
        }
        x.for_each(run.pool, |_, row| row.iter_mut().for_each(|x| *x /= STREAMS as f32));
    }
}

impl AltupLayer {
    /// Loads a layer's weights. None if the model has one stream.
    pub fn load(loader: Loader, layer: usize) -> Result<Option<Self>, EngineError> {
        use TensorRole::*;
        let spec = &loader.weights.spec;
        if spec.block != Block::Altup {
            return Ok(None);
        }
        let mut router_norm = loader.rms_norm(AltupRouterNorm, layer)?;
        router_norm.weight.iter_mut().for_each(|weight| *weight /= spec.hidden_dim as f32);
        Ok(Some(Self {
            router_norm,
            router: loader.mat(AltupRouter, layer)?,
            predict: loader.vector(AltupPredictCoef, layer)?,
            correct: loader.vector(AltupCorrectCoef, layer)?,
            correct_scale: loader.vector(AltupCorrectScale, layer)?,
            laurel: [loader.mat(LaurelL, layer)?, loader.mat(LaurelR, layer)?],
            laurel_norm: loader.rms_norm(LaurelPostNorm, layer)?,
        }))
    }

    /// Replaces the streams by the layer's predictions of them, then sets x to stream 0.
    pub fn predict(&self, run: &mut Run, x: &mut Rows, b: &mut AltupBuffers) {
        let hidden = x.width();
        x.for_each(run.pool, |i, row| row.copy_from_slice(&b.streams.row(i)[..hidden]));
        self.route(run, x, b);
        b.streams.for_each(run.pool, |i, row| {
            let factors: [[f32; STREAMS]; STREAMS] =
                std::array::from_fn(|to| std::array::from_fn(|from| coefficient(&self.predict, to * STREAMS + from, b.router.row(i))));
            for e in 0..hidden {
                let old: [f32; STREAMS] = std::array::from_fn(|stream| row[stream * hidden + e]);
                for (to, factors) in factors.iter().enumerate() {
                    row[to * hidden + e] += factors.iter().zip(old).map(|(factor, x)| factor * x).sum::<f32>();
                }
            }
        });
        x.for_each(run.pool, |i, row| row.copy_from_slice(&b.streams.row(i)[..hidden]));
    }

    /// Computes the low-rank connection from attention's input.
    pub fn laurel(&self, run: &mut Run, h: &Rows, b: &mut AltupBuffers) {
        let (kernels, weights, [down, up]) = (run.kernels, run.weights, &self.laurel);
        b.low.reshape(h.num_rows(), down.rows());
        run.linear(h, false, vec![(down.matrix(weights), &mut b.low)]);
        b.laurel.reshape(h.num_rows(), h.width());
        run.linear(&b.low, false, vec![(up.matrix(weights), &mut b.laurel)]);
        b.laurel.for_each(run.pool, |i, row| {
            kernels.norm_in_place(row, &self.laurel_norm);
            kernels.add_to(row, h.row(i));
        });
    }

    /// x = (x + laurel) / sqrt(2)
    pub fn join(&self, run: &mut Run, x: &mut Rows, b: &AltupBuffers) {
        let join = |(x, laurel): (&mut f32, &f32)| *x = (*x + laurel) * std::f32::consts::FRAC_1_SQRT_2;
        x.for_each(run.pool, |i, row| row.iter_mut().zip(b.laurel.row(i)).for_each(join));
    }

    /// Corrects the streams by the difference between x, which the layer computed, and its prediction. Then sets x to the scaled stream 0,
    /// the input of the per-layer part.
    pub fn correct(&self, run: &mut Run, x: &mut Rows, b: &mut AltupBuffers) {
        let hidden = x.width();
        self.route(run, x, b);
        b.streams.for_each(run.pool, |i, row| {
            let factors: [f32; STREAMS] = std::array::from_fn(|to| 1.0 + coefficient(&self.correct, to, b.router.row(i)));
            for (e, x) in x.row(i).iter().enumerate() {
                let difference = x - row[e];
                factors.iter().enumerate().for_each(|(to, factor)| row[to * hidden + e] += difference * factor);
            }
        });
        x.for_each(run.pool, |i, row| {
            let scaled = b.streams.row(i)[..hidden].iter().zip(&self.correct_scale);
            row.iter_mut().zip(scaled).for_each(|(x, (stream, scale))| *x = stream * scale);
        });
    }

    /// Adds rows to all streams except stream 0.
    pub fn add(&self, run: &mut Run, rows: &Rows, b: &mut AltupBuffers) {
        let kernels = run.kernels;
        b.streams
            .for_each(run.pool, |i, row| row.chunks_exact_mut(rows.width()).skip(1).for_each(|stream| kernels.add_to(stream, rows.row(i))));
    }

    /// b.router = tanh(router(norm(x)))
    fn route(&self, run: &mut Run, x: &Rows, b: &mut AltupBuffers) {
        b.one.reshape(x.num_rows(), x.width());
        run.norm(&mut b.one, x, &self.router_norm);
        b.router.reshape(x.num_rows(), STREAMS);
        run.linear(&b.one, false, vec![(self.router.matrix(run.weights), &mut b.router)]);
        b.router.for_each(run.pool, |_, row| row.iter_mut().for_each(|x| *x = x.tanh()));
    }
}

/// Row `row` of the coefficients times the router's output.
fn coefficient(coefficients: &[f32], row: usize, router: &[f32]) -> f32 {
    coefficients[row * STREAMS..][..STREAMS].iter().zip(router).map(|(coefficient, x)| coefficient * x).sum()
}

/// The magnitude of a row. At least 1e-12, so that rows of zeros stay zeros.
fn magnitude(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12)
}
