//! Runs lightning attention (Qin et al. 2024; MiniMax-01): linear attention whose state decays by a constant factor per head.
//!
//! q, k, v = silu(qkv(h)). With the state S [head_dim, head_dim] of a head: S = e^-slope · S + k ⊗ v, y = Sᵀ q. The result is
//! norm(y) · sigmoid(gate(h)), with one norm over all heads.

use super::super::loader::{Loader, Mat};
use super::super::run::Run;
use super::super::simd::norm::Norm;
use super::super::simd::recurrence::{Decay, Heads, Scan, View};
use super::super::simd::rows::Rows;
use super::super::simd::{Gate, Sigmoidal};
use super::step::Step;
use crate::EngineError;
use crate::decay::lightning_factors;
use model::{Ssm, TensorRole};

pub struct LightningLayer {
    spec: Ssm,
    layer: usize,
    qkv: Mat,  // [3 * inner, hidden] each head's query, key and value
    gate: Mat, // [inner, hidden]
    norm: Norm,
    /// The factor that each head's state is multiplied by per row.
    factors: Vec<f32>, // [heads]
}

/// The activations of a step.
#[derive(Default)]
pub struct LightningBuffers {
    qkv: Rows,  // [num_tokens, 3 * inner]
    gate: Rows, // [num_tokens, inner]
}

impl LightningLayer {
    pub fn load(loader: Loader, layer: usize, spec: &Ssm) -> Result<Self, EngineError> {
        Ok(Self {
            spec: *spec,
            layer,
            qkv: loader.mat(TensorRole::AttnQkv, layer)?,
            gate: loader.mat(TensorRole::AttnGate, layer)?,
            norm: loader.rms_norm(TensorRole::AttnSubNorm, layer)?,
            factors: lightning_factors(spec.heads, layer, loader.weights.spec.num_layers()),
        })
    }

    /// Computes the output before its projection, out = [num_tokens, inner].
    pub fn run(&self, run: &mut Run, step: &mut Step, h: &Rows, (b, out): (&mut LightningBuffers, &mut Rows)) {
        let Ssm { inner, state, heads, .. } = self.spec;
        let (n, kernels, weights) = (h.num_rows(), run.kernels, run.weights);
        b.qkv.reshape(n, 3 * inner);
        b.gate.reshape(n, inner);
        run.linear(h, false, vec![(self.qkv.matrix(weights), &mut b.qkv), (self.gate.matrix(weights), &mut b.gate)]);
        b.qkv.for_each(run.pool, |_, row| kernels.activate(row, Sigmoidal::Silu));
        out.reshape(n, inner);
        let mut states = step.state.layer_of(&step.batch.state_slots, self.layer);
        let view = |part: usize| View::of(&b.qkv, part * state, 3 * state);
        let decay = Decay::PerHead { factors: View::constant(&self.factors, 1), steps: None };
        let scan = Scan { x: view(2), b: view(1), c: view(0), group: 1, decay };
        let all = &mut Heads { count: heads, keys: state, values: state, sequences: step.sequences, states: &mut states };
        kernels.scan(run.pool, all, &scan, out);
        out.for_each(run.pool, |i, row| {
            kernels.norm_in_place(row, &self.norm);
            kernels.gate(row, b.gate.row(i), Gate::Sigmoid);
        });
    }
}
