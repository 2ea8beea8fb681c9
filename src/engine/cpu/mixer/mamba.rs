//! Runs selective state spaces: Mamba 1 (Gu and Dao 2023), Mamba 2 (Dao and Gu 2024) and PLaMo 2's form of Mamba.
//!
//! z, x, b, c and the time step dt come from the row. x (and Mamba 2's b and c) pass a convolution over time. With the state S [state,
//! channels] of a head: S = e^(dt · a) · S + b ⊗ (dt · x), y = Sᵀ c + d · x, and the result is y · silu(z).
//!
//! | | dt, b, c | a, dt | heads |
//! |---|---|---|---|
//! | Mamba 1 | a low-rank projection of x, in this order | per channel | one, of all channels |
//! | PLaMo 2 | a low-rank projection of x: b, c, dt, each normalised | per head | share b and c |
//! | Mamba 2 | the input projection | per head | groups share b and c, and may be normalised at the end |

use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::Gate;
use super::super::simd::attend::SequenceRows;
use super::super::simd::norm::Norm;
use super::super::simd::recurrence::{Decay, Heads, Scan, View};
use super::super::simd::rows::Rows;
use super::convolution::{Columns, Convolution, split, transposed};
use super::step::Step;
use crate::EngineError;
use model::arch::Recurrent;
use model::{NormKind, Ssm, TensorRole};

/// The projections of x to dt, b and c in Mamba 1 and PLaMo 2.
struct LowRank {
    x: Mat,  // [rank + 2 * state, inner]
    dt: Mat, // [heads or channels, rank]
    rank: usize,
    /// The starts of dt, b and c in the projection of x.
    starts: [usize; 3],
    /// The norms of dt, b and c.
    norms: Option<[Norm; 3]>,
}

pub struct MambaLayer {
    spec: Ssm,
    layer: usize,
    input: Mat,
    convolution: Convolution,
    low_rank: Option<LowRank>,
    dt_bias: Vec<f32>, // [heads], or [inner] in Mamba 1
    a: Vec<f32>,       // [heads], or [state][inner] in Mamba 1
    d: Vec<f32>,       // [inner]
    /// The norms of the groups' channels.
    norms: Vec<Norm>,
}

/// The activations of a step.
#[derive(Default)]
pub struct MambaBuffers {
    wide: Rows,   // [num_tokens, …] the input projection
    sorted: Rows, // [num_tokens, 2 * inner] PLaMo 2's, with all of z before all of x
    mixed: Rows,  // [num_tokens, conv_channels] after the convolution
    low: Rows,    // [num_tokens, rank + 2 * state]
    rank: Rows,   // [num_tokens, rank] dt before its projection
    steps: Rows,  // [num_tokens, heads or inner] dt
    decays: Rows, // [num_tokens, heads]
}

impl MambaLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Ssm) -> Result<Self, EngineError> {
        use TensorRole::*;
        let by_channel = spec.kind == Recurrent::Mamba1;
        let channels_per_d = if by_channel { 1 } else { spec.inner / spec.heads };
        let a = loader.vector(SsmA, layer)?;
        let d = loader.vector(SsmD, layer)?;
        let norm_len = spec.inner / spec.groups;
        let norm = |weight: &[f32]| Norm { kind: NormKind::Rms, weight: weight.to_vec(), bias: None, eps: loader.weights.spec.norm_eps };
        let has_norm = spec.kind == Recurrent::Mamba2;
        let norms = loader.optional(SsmNorm, layer).filter(|_| has_norm).unwrap_or_default().chunks_exact(norm_len).map(norm).collect();
        Ok(Self {
            spec: *spec,
            layer,
            input: loader.mat(SsmIn, layer)?,
            convolution: Convolution::load(loader, layer, (SsmConv, Some(SsmConvBias)), spec.conv, true)?,
            low_rank: if spec.kind == Recurrent::Mamba2 { None } else { Some(LowRank::load(loader, layer, spec)?) },
            dt_bias: loader.vector(SsmDtBias, layer)?,
            a: if by_channel { transposed(&a, spec.state) } else { a },
            d: d.iter().flat_map(|&d| std::iter::repeat_n(d, channels_per_d)).collect(),
            norms,
        })
    }

    /// Computes the output before its projection, out = [num_tokens, inner].
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut MambaBuffers, &mut Rows)) {
        let (n, inner, kernels) = (h.num_rows(), self.spec.inner, run.kernels);
        let wide_len = self.project(run, h, b);
        let [z, x] = match self.spec.kind {
            Recurrent::Mamba1 => [inner, 0],
            _ => [0, inner],
        };
        let wide = if self.spec.kind == Recurrent::MambaPlamo { &b.sorted } else { &b.wide };
        let states = step.state.layer_of(&step.batch.state_slots, self.layer);
        let (mut earlier, mut states) = split(states, self.convolution.state_len());
        b.mixed.reshape(n, self.spec.conv_channels());
        self.convolution.run(run, step.sequences, &mut earlier, Columns { input: wide, from: x, output: &mut b.mixed, to: 0 });
        match &self.low_rank {
            Some(low) => low.run(run, &b.mixed, (&mut b.low, &mut b.rank, &mut b.steps), self.dt_bias.len()),
            None => {
                let heads = self.spec.heads;
                b.steps.reshape(n, heads);
                b.steps.for_each(run.pool, |i, row| row.copy_from_slice(&wide.row(i)[wide_len - heads..]));
            }
        }
        b.steps.for_each(run.pool, |_, row| kernels.softplus(row, &self.dt_bias));
        out.reshape(n, inner);
        self.scan(run, step.sequences, &mut states, (&b.mixed, &b.low, &b.steps, &mut b.decays), out);
        out.for_each(run.pool, |i, row| {
            kernels.multiply_add(row, &b.mixed.row(i)[..inner], &self.d);
            kernels.gate(row, &wide.row(i)[z..][..inner], Gate::Silu);
            for (norm, group) in self.norms.iter().zip(row.chunks_exact_mut(inner / self.spec.groups)) {
                kernels.norm_in_place(group, norm);
            }
        });
    }

    /// Computes the input projection. Returns its length.
    fn project(&self, run: &mut Run, h: &Rows, b: &mut MambaBuffers) -> usize {
        let Ssm { kind, inner, heads, .. } = self.spec;
        let len = if kind == Recurrent::Mamba2 { inner + self.spec.conv_channels() + heads } else { 2 * inner };
        b.wide.reshape(h.num_rows(), len);
        run.linear(h, false, vec![(self.input.matrix(run.weights), &mut b.wide)]);
        if kind == Recurrent::MambaPlamo {
            // each head holds its z, then its x
            let dim = inner / heads;
            b.sorted.reshape(h.num_rows(), len);
            b.sorted.for_each(run.pool, |i, row| {
                let (z, x) = row.split_at_mut(inner);
                for ((z, x), head) in z.chunks_exact_mut(dim).zip(x.chunks_exact_mut(dim)).zip(b.wide.row(i).chunks_exact(2 * dim)) {
                    z.copy_from_slice(&head[..dim]);
                    x.copy_from_slice(&head[dim..]);
                }
            });
        }
        len
    }

    fn scan(
        &self,
        run: &mut Run,
        sequences: &[SequenceRows],
        states: &mut [&mut [f32]],
        (mixed, low, steps, decays): (&Rows, &Rows, &Rows, &mut Rows),
        out: &mut Rows,
    ) {
        let Ssm { inner, state, .. } = self.spec;
        let by_channel = self.spec.kind == Recurrent::Mamba1;
        let (count, groups) = if by_channel { (1, 1) } else { (self.spec.heads, self.spec.groups) };
        let dim = inner / count;
        if !by_channel {
            decays.reshape(steps.num_rows(), count);
            decays.for_each(run.pool, |i, row| {
                row.iter_mut().zip(steps.row(i)).zip(&self.a).for_each(|((decay, dt), a)| *decay = (dt * a).exp());
            });
        }
        let (b, c, group) = match &self.low_rank {
            Some(low_rank) => {
                let [_, b, c] = low_rank.starts;
                (View::of(low, b, 0), View::of(low, c, 0), count)
            }
            None => (View::of(mixed, inner, state), View::of(mixed, inner + groups * state, state), count / groups),
        };
        let decay = if by_channel {
            Decay::PerChannel { steps: View::of(steps, 0, 0), a: &self.a }
        } else {
            Decay::PerHead { factors: View::of(decays, 0, 1), steps: Some(View::of(steps, 0, 1)) }
        };
        let heads = &mut Heads { count, keys: state, values: dim, sequences, states };
        run.kernels.scan(run.pool, heads, &Scan { x: View::of(mixed, 0, dim), b, c, group, decay }, out);
    }
}

impl LowRank {
    fn load(loader: Loader, layer: usize, spec: &Ssm) -> Result<Self, EngineError> {
        use TensorRole::*;
        let (rank, state) = (spec.time_rank(loader.weights.spec.hidden_dim), spec.state);
        let has_norms = loader.weights.get(SsmDtNorm, layer).is_some();
        let norms = if has_norms {
            Some([loader.rms_norm(SsmDtNorm, layer)?, loader.rms_norm(SsmBNorm, layer)?, loader.rms_norm(SsmCNorm, layer)?])
        } else {
            spec.normalised.then(|| [rank, state, state].map(|len| loader.weightless(NormKind::Rms, len)))
        };
        let starts = if spec.kind == Recurrent::Mamba1 { [0, rank, rank + state] } else { [2 * state, 0, state] };
        Ok(Self { x: loader.mat(SsmX, layer)?, dt: loader.mat(SsmDt, layer)?, rank, starts, norms })
    }

    /// Computes low = x · Wᵀ with its norms, and steps = dt's projection [num_tokens, width].
    fn run(&self, run: &mut Run, x: &Rows, (low, rank, steps): (&mut Rows, &mut Rows, &mut Rows), width: usize) {
        let (n, kernels, weights) = (x.num_rows(), run.kernels, run.weights);
        let matrix = self.x.matrix(weights);
        low.reshape(n, matrix.rows);
        run.linear(x, false, vec![(matrix, &mut *low)]);
        if let Some(norms) = &self.norms {
            low.for_each(run.pool, |_, row| {
                for (norm, start) in norms.iter().zip(self.starts) {
                    kernels.norm_in_place(&mut row[start..][..norm.weight.len()], norm);
                }
            });
        }
        rank.reshape(n, self.rank);
        rank.for_each(run.pool, |i, row| row.copy_from_slice(&low.row(i)[self.starts[0]..][..self.rank]));
        steps.reshape(n, width);
        run.linear(rank, false, vec![(self.dt.matrix(weights), steps)]);
    }
}
