//! Runs what keeps a state over the rows of a sequence: convolutions, scans and the delta rule.

use std::ops::Range;

use super::super::simd::pool::ThreadPool;
use super::super::simd::recurrence::{Decay as Fade, Delta as DeltaArgs, Heads, KeyHeads, Scan as ScanArgs, View};
use super::super::simd::rows::Rows;
use super::super::simd::{Kernels, Sigmoidal};
use super::super::state::StateStore;
use super::buffers::Buffers;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{BufferId, Convolve, Decay, Delta, Part, Scan};

pub struct ConvolveKernel {
    op: Convolve,
    /// [taps][channels], the oldest row first
    kernel: Vec<f32>,
    bias: Option<Vec<f32>>,
    layer: usize,
}

impl ConvolveKernel {
    pub fn new(op: &Convolve, tensors: &Tensors) -> Self {
        let kernel = transposed(&tensors.vector(op.kernel), op.taps);
        Self { op: *op, kernel, bias: tensors.optional(op.bias), layer: tensors.program.states[op.state.state].layer }
    }
}

impl Kernel for ConvolveKernel {
    /// out[t] = Σ kernel[j] · in[t − (taps − 1) + j]. The state supplies the rows before a sequence's first row, and then moves on.
    fn run(&self, step: &mut Step) {
        let (op, kernels) = (&self.op, step.kernels);
        let (taps, channels, from) = (op.taps, op.channels, op.from.first);
        let place = op.state.first..op.state.first + (taps - 1) * channels;
        let kept: Vec<Vec<usize>> = (0..step.sequences.len()).map(|i| step.state.kept_after(i).to_vec()).collect();
        let mut states = states(step.state, &step.batch.state_slots, self.layer, place.clone());
        let mut of_row = vec![0; step.inputs.len()];
        for (i, s) in step.sequences.iter().enumerate() {
            of_row[s.first_row..s.first_row + s.num_rows].fill(i);
        }
        let mut output = step.buffers.take(op.to.buffer);
        let (input, sequences) = (step.buffers.rows(op.from.buffer), step.sequences);
        let earlier: Vec<&[f32]> = states.iter().map(|state| &**state).collect();
        output.for_each(step.pool, |i, row| {
            let (state, first) = (earlier[of_row[i]], sequences[of_row[i]].first_row);
            let out = &mut row[op.to.first..][..channels];
            out.fill(0.0);
            for tap in 0..taps {
                // the row `taps − 1 − tap` before this one
                let source = match (i - first + tap).checked_sub(taps - 1) {
                    Some(at) => &input.row(first + at)[from..][..channels],
                    None => &state[(i - first + tap) * channels..][..channels],
                };
                kernels.multiply_add(out, source, &self.kernel[tap * channels..][..channels]);
            }
            if let Some(bias) = &self.bias {
                kernels.add_to(out, bias);
            }
            if op.silu {
                kernels.activate(out, Sigmoidal::Silu);
            }
        });
        // the state after some rows: the last ones, behind those of the state before
        let move_on = |state: &mut [f32], first_row: usize, num_rows: usize| {
            let kept = (taps - 1).saturating_sub(num_rows);
            state.copy_within(num_rows.min(taps - 1) * channels.., 0);
            for (at, to) in state.chunks_exact_mut(channels).enumerate().skip(kept) {
                let row = first_row + num_rows - (taps - 1 - at);
                to.copy_from_slice(&input.row(row)[from..][..channels]);
            }
        };
        let before: Vec<Vec<f32>> = kept.iter().zip(&states).map(|(k, s)| if k.is_empty() { Vec::new() } else { s.to_vec() }).collect();
        for (s, state) in sequences.iter().zip(&mut states) {
            move_on(state, s.first_row, s.num_rows);
        }
        for (i, kept) in kept.iter().enumerate() {
            for (k, &num_rows) in kept.iter().enumerate() {
                let state = &mut step.state.kept_mut((i, k), self.layer)[place.clone()];
                state.copy_from_slice(&before[i]);
                move_on(state, sequences[i].first_row, num_rows);
            }
        }
        step.buffers.put(op.to.buffer, output);
    }
}

pub struct ScanKernel {
    op: Scan,
    /// Constant factors per head, or [keys][heads · values] per channel.
    a: Vec<f32>,
    layer: usize,
}

impl ScanKernel {
    pub fn new(op: &Scan, tensors: &Tensors) -> Self {
        let a = match op.decay {
            Decay::PerHead { .. } => Vec::new(),
            Decay::Constant(factors) => tensors.vector(factors),
            Decay::PerChannel { a, .. } => transposed(&tensors.vector(a), op.keys),
        };
        Self { op: *op, a, layer: tensors.program.states[op.state.state].layer }
    }
}

impl Kernel for ScanKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        with_states(step, (self.layer, op.state.first), [op.heads, op.keys, op.values], op.out, |step, heads, out| {
            let at = |part| view(step.buffers, part);
            let decay = match op.decay {
                Decay::PerHead { factors, steps } => Fade::PerHead { factors: at(factors), steps: Some(at(steps)) },
                Decay::Constant(_) => Fade::PerHead { factors: View::constant(&self.a, 1), steps: None },
                Decay::PerChannel { steps, .. } => Fade::PerChannel { steps: at(steps), a: &self.a },
            };
            let scan = ScanArgs { x: at(op.x), b: at(op.b), c: at(op.c), group: op.group, decay };
            step.kernels.scan(step.pool, heads, &scan, out);
        });
    }
}

pub struct DeltaKernel {
    op: Delta,
    layer: usize,
}

impl DeltaKernel {
    pub fn new(op: &Delta, tensors: &Tensors) -> Self {
        Self { op: *op, layer: tensors.program.states[op.state.state].layer }
    }
}

impl Kernel for DeltaKernel {
    fn run(&self, step: &mut Step) {
        let op = &self.op;
        with_states(step, (self.layer, op.state.first), [op.heads, op.keys, op.values], op.out, |step, heads, out| {
            let [q, k, v, decay, beta] = [op.q, op.k, op.v, op.decay, op.beta].map(|part| view(step.buffers, part));
            let key_heads = if op.tiled { KeyHeads::Tiled } else { KeyHeads::Repeated };
            let delta = DeltaArgs { q, k, v, num_key_heads: op.key_heads, key_heads, decay, by_key: op.by_key, beta };
            step.kernels.delta(step.pool, heads, &delta, out);
        });
    }
}

/// The inputs and resources of a recurrence, while its states are lent.
struct Recurrence<'a> {
    kernels: &'static Kernels,
    pool: &'a mut ThreadPool,
    buffers: &'a Buffers,
}

/// Calls `run` with the heads' states, which begin at float `first` of a layer's state, and with the buffer for its result: once for all
/// rows, or in passes, between which states are kept.
fn with_states(
    step: &mut Step,
    (layer, first): (usize, usize),
    [count, keys, values]: [usize; 3],
    out: BufferId,
    run: impl Fn(Recurrence, &mut Heads, &mut Rows),
) {
    let place = first..first + count * keys * values;
    let mut rows = step.buffers.take(out);
    for (k, (numbers, sequences)) in step.state.passes(step.sequences).into_iter().enumerate() {
        let slots: Vec<u32> = numbers.iter().map(|&i| step.batch.state_slots[i]).collect();
        let mut states = states(step.state, &slots, layer, place.clone());
        let heads = &mut Heads { count, keys, values, sequences: &sequences, states: &mut states };
        run(Recurrence { kernels: step.kernels, pool: step.pool, buffers: step.buffers }, heads, &mut rows);
        numbers.iter().zip(slots).for_each(|(&i, slot)| step.state.keep((i, k), slot, layer, place.clone()));
    }
    step.buffers.put(out, rows);
}

fn view(buffers: &Buffers, part: Part) -> View<'_> {
    View::of(buffers.rows(part.buffer), part.first, part.stride)
}

/// The floats at `place` of the sequences' states in a layer.
fn states<'a>(state: &'a mut StateStore, slots: &[u32], layer: usize, place: Range<usize>) -> Vec<&'a mut [f32]> {
    state.layer_of(slots, layer).into_iter().map(|state| &mut state[place.clone()]).collect()
}

/// Transposes [rows][columns] to [columns][rows].
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|i| matrix[i % rows * columns + i / rows]).collect()
}
