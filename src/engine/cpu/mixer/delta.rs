//! Runs the gated delta rule (Yang et al. 2024): the linear attention of Qwen3-Next and Qwen 3.5, and Kimi's with a decay per channel (Kimi
//! Linear, Moonshot AI 2025).
//!
//! q, k and v pass a convolution over time. Queries and keys have length 1. With the state S [key, value] of a head, and the row's decay g
//! and strength beta: S = g · S, S += k ⊗ (beta · (v − Sᵀ k)), y = Sᵀ q / sqrt(key). The result is norm(y) · silu(z), or norm(y) ·
//! sigmoid(z) in Kimi's form. g = e^(a · softplus(alpha + bias)), with one alpha per head, or per element of a key in Kimi's form.

use super::super::activation::sigmoid;
use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::Gate;
use super::super::simd::norm::Norm;
use super::super::simd::recurrence::{Delta, Heads, KeyHeads, View};
use super::super::simd::rows::Rows;
use super::convolution::{Columns, Convolution, split};
use super::step::Step;
use crate::EngineError;
use model::arch::Recurrent;
use model::{Ssm, TensorRole};

/// The layout of a layer's projections in the file.
enum Input {
    /// q, k and v of all heads; z; beta and alpha of all heads.
    Apart { qkv: Mat, z: Mat, strengths: Strengths },
    /// Per key head: q, k, then v and z of its value heads (the first files of Qwen3-Next).
    Interleaved { qkvz: Mat, strengths: Strengths },
    /// Kimi's: q, k and v have a matrix each, and z and the decay pass through a low rank.
    Kimi(Box<KimiInput>),
}

struct KimiInput {
    qkv: [Mat; 3],
    /// Projects down to a low rank, then up to the gate of all heads.
    z: [Mat; 2],
    /// Projects down to a low rank, then up to one alpha per element of the keys.
    decay: [Mat; 2],
    beta: Mat,
}

enum Strengths {
    Apart {
        beta: Mat,
        alpha: Mat,
    },
    /// Per key head: beta, then alpha, of its value heads.
    Interleaved(Mat),
}

pub struct DeltaLayer {
    spec: Ssm,
    layer: usize,
    input: Input,
    /// One convolution over all of q, k and v, or one for each.
    convolutions: Vec<Convolution>,
    a: Vec<f32>,       // [heads]
    dt_bias: Vec<f32>, // [heads], or [heads * key] in Kimi's
    norm: Norm,
}

/// The activations of a step. `inner` is the length of all values, `shared` the length of all keys.
#[derive(Default)]
pub struct DeltaBuffers {
    wide: Rows,     // [num_tokens, 2 * inner + 2 * shared] interleaved projections, or [num_tokens, 2 * heads]
    qkv: [Rows; 3], // [num_tokens, inner + 2 * shared] in the first; Kimi's fills all three
    z: Rows,        // [num_tokens, inner]
    low: [Rows; 2], // [num_tokens, key] Kimi's low rank of z and of the decay
    beta: Rows,     // [num_tokens, heads]
    decay: Rows,    // [num_tokens, heads], or [num_tokens, heads * key]
    mixed: Rows,    // [num_tokens, inner + 2 * shared] after the convolution
}

impl DeltaLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Ssm) -> Result<Self, EngineError> {
        use TensorRole::*;
        let mats =
            |roles: [TensorRole; 2]| -> Result<[Mat; 2], EngineError> { Ok([loader.mat(roles[0], layer)?, loader.mat(roles[1], layer)?]) };
        let convolution = |role| Convolution::load(loader, layer, (role, None), spec.conv, true);
        let (input, convolutions) = if spec.kind == Recurrent::Kda {
            let qkv = [loader.mat(AttnQ, layer)?, loader.mat(AttnK, layer)?, loader.mat(AttnV, layer)?];
            let input = KimiInput { qkv, z: mats([SsmGA, SsmGB])?, decay: mats([SsmFA, SsmFB])?, beta: loader.mat(SsmBeta, layer)? };
            (Input::Kimi(Box::new(input)), vec![convolution(SsmConvQ)?, convolution(SsmConvK)?, convolution(SsmConvV)?])
        } else {
            let strengths = if spec.kind == Recurrent::Delta {
                let [beta, alpha] = mats([SsmBeta, SsmAlpha])?;
                Strengths::Apart { beta, alpha }
            } else {
                Strengths::Interleaved(loader.mat(SsmBa, layer)?)
            };
            let old = spec.kind == Recurrent::DeltaNext && loader.weights.get(AttnQkv, layer).is_none();
            let input = if old {
                Input::Interleaved { qkvz: loader.mat(SsmIn, layer)?, strengths }
            } else {
                let [qkv, z] = mats([AttnQkv, AttnGate])?;
                Input::Apart { qkv, z, strengths }
            };
            (input, vec![convolution(SsmConv)?])
        };
        Ok(Self {
            spec: *spec,
            layer,
            input,
            convolutions,
            a: loader.vector(SsmA, layer)?,
            dt_bias: loader.vector(SsmDtBias, layer)?,
            norm: loader.rms_norm(SsmNorm, layer)?,
        })
    }

    /// Computes the output before its projection, out = [num_tokens, inner].
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut DeltaBuffers, &mut Rows)) {
        let Ssm { kind, inner, state, heads, groups, .. } = self.spec;
        let (n, kernels) = (h.num_rows(), run.kernels);
        let (shared, dim) = (groups * state, inner / heads);
        b.z.reshape(n, inner);
        b.beta.reshape(n, heads);
        b.decay.reshape(n, self.dt_bias.len());
        self.project(run, h, b);
        b.beta.for_each(run.pool, |_, row| row.iter_mut().for_each(|x| *x = sigmoid(*x)));
        b.decay.for_each(run.pool, |_, row| {
            kernels.softplus(row, &self.dt_bias);
            let len = row.len() / heads;
            row.chunks_exact_mut(len).zip(&self.a).for_each(|(head, &a)| kernels.exp(head, a));
        });
        let states = step.state.layer_of(&step.batch.state_slots, self.layer);
        let (mut earlier, mut states) = split(states, self.convolutions.iter().map(Convolution::state_len).sum());
        b.mixed.reshape(n, inner + 2 * shared);
        let mut to = 0;
        for (convolution, input) in self.convolutions.iter().zip(&b.qkv) {
            let (mut own, rest) = split(earlier, convolution.state_len());
            convolution.run(run, step.sequences, &mut own, Columns { input, from: 0, output: &mut b.mixed, to });
            (earlier, to) = (rest, to + input.width());
        }
        let eps = self.norm.eps;
        b.mixed.for_each(run.pool, |_, row| {
            let (q, k) = row[..2 * shared].split_at_mut(shared);
            q.chunks_exact_mut(state).for_each(|head| scale_to(head, eps, 1.0 / (state as f32).sqrt()));
            k.chunks_exact_mut(state).for_each(|head| scale_to(head, eps, 1.0));
        });
        out.reshape(n, inner);
        let by_key = kind == Recurrent::Kda;
        let delta = Delta {
            q: View::of(&b.mixed, 0, state),
            k: View::of(&b.mixed, shared, state),
            v: View::of(&b.mixed, 2 * shared, dim),
            num_key_heads: groups,
            // Qwen 3.5's files order value heads for tiled key heads
            key_heads: if kind == Recurrent::Delta { KeyHeads::Tiled } else { KeyHeads::Repeated },
            decay: View::of(&b.decay, 0, if by_key { state } else { 1 }),
            by_key,
            beta: View::of(&b.beta, 0, 1),
        };
        let all = &mut Heads { count: heads, keys: state, values: dim, sequences: step.sequences, states: &mut states };
        kernels.delta(run.pool, all, &delta, out);
        out.for_each(run.pool, |i, row| {
            row.chunks_exact_mut(dim).for_each(|head| kernels.norm_in_place(head, &self.norm));
            kernels.gate(row, b.z.row(i), if by_key { Gate::Sigmoid } else { Gate::Silu });
        });
    }

    /// Computes the products: q, k, v and z, beta before its sigmoid, and the decay's alpha.
    fn project(&self, run: &mut Run, h: &Rows, b: &mut DeltaBuffers) {
        let Ssm { inner, state, heads, groups, .. } = self.spec;
        let (n, weights, shared) = (h.num_rows(), run.weights, groups * state);
        let DeltaBuffers { wide, qkv, z, low, beta, decay, .. } = b;
        let strengths = match &self.input {
            Input::Kimi(kimi) => {
                let mut jobs = vec![(kimi.beta.matrix(weights), beta)];
                for (matrix, rows) in kimi.qkv.iter().zip(qkv) {
                    rows.reshape(n, inner);
                    jobs.push((matrix.matrix(weights), rows));
                }
                for (matrix, rows) in [&kimi.z[0], &kimi.decay[0]].into_iter().zip(low.iter_mut()) {
                    rows.reshape(n, state);
                    jobs.push((matrix.matrix(weights), rows));
                }
                run.linear(h, false, jobs);
                run.linear(&low[0], false, vec![(kimi.z[1].matrix(weights), z)]);
                return run.linear(&low[1], false, vec![(kimi.decay[1].matrix(weights), decay)]);
            }
            Input::Apart { qkv: matrix, z: z_matrix, strengths } => {
                qkv[0].reshape(n, inner + 2 * shared);
                run.linear(h, false, vec![(matrix.matrix(weights), &mut qkv[0]), (z_matrix.matrix(weights), z)]);
                strengths
            }
            Input::Interleaved { qkvz, strengths } => {
                wide.reshape(n, 2 * inner + 2 * shared);
                run.linear(h, false, vec![(qkvz.matrix(weights), &mut *wide)]);
                qkv[0].reshape(n, inner + 2 * shared);
                let (each, values) = (wide.width() / groups, inner / groups);
                let copy = |to: &mut [f32], from: &[f32], at: usize, len: usize| {
                    to.chunks_exact_mut(len).zip(from.chunks_exact(each)).for_each(|(to, from)| to.copy_from_slice(&from[at..][..len]));
                };
                qkv[0].for_each(run.pool, |i, row| {
                    let (q, rest) = row.split_at_mut(shared);
                    let (k, v) = rest.split_at_mut(shared);
                    copy(q, wide.row(i), 0, state);
                    copy(k, wide.row(i), state, state);
                    copy(v, wide.row(i), 2 * state, values);
                });
                z.for_each(run.pool, |i, row| copy(row, wide.row(i), 2 * state + values, values));
                strengths
            }
        };
        match strengths {
            Strengths::Apart { beta: beta_matrix, alpha } => {
                run.linear(h, false, vec![(beta_matrix.matrix(weights), beta), (alpha.matrix(weights), decay)]);
            }
            Strengths::Interleaved(matrix) => {
                wide.reshape(n, 2 * heads);
                run.linear(h, false, vec![(matrix.matrix(weights), &mut *wide)]);
                let group = heads / groups;
                let copy = |to: &mut [f32], from: &[f32], at: usize| {
                    let parts = to.chunks_exact_mut(group).zip(from.chunks_exact(2 * group));
                    parts.for_each(|(to, from)| to.copy_from_slice(&from[at..][..group]));
                };
                beta.for_each(run.pool, |i, row| copy(row, wide.row(i), 0));
                decay.for_each(run.pool, |i, row| copy(row, wide.row(i), group));
            }
        }
    }
}

/// Scales a vector to a length. Counts vectors shorter than `eps` as of length `eps`.
fn scale_to(x: &mut [f32], eps: f32, length: f32) {
    let factor = length / sum_of_squares(x).sqrt().max(eps);
    x.iter_mut().for_each(|x| *x *= factor);
}

/// The sum of squares in 16 partial sums, which compilers turn into vectors.
fn sum_of_squares(x: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    for part in x.chunks(16) {
        sums.iter_mut().zip(part).for_each(|(sum, x)| *sum += x * x);
    }
    sums.iter().sum()
}
