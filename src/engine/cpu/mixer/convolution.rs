//! Runs a causal convolution over the rows of a sequence, separately for each channel. The sequence's state holds the rows before the next
//! one.

use model::TensorRole;

use super::super::loader::Loader;
use super::super::run::Run;
use super::super::simd::Sigmoidal;
use super::super::simd::attend::SequenceRows;
use super::super::simd::rows::Rows;
use crate::EngineError;

pub struct Convolution {
    /// [taps][channels], the oldest row first
    kernel: Vec<f32>,
    bias: Option<Vec<f32>>,
    channels: usize,
    taps: usize,
    /// Whether SiLU follows.
    silu: bool,
}

/// The input and output columns of a convolution.
pub struct Columns<'a> {
    pub input: &'a Rows,
    pub from: usize,
    pub output: &'a mut Rows,
    pub to: usize,
}

impl Convolution {
    /// Loads a convolution. `taps` is the number of rows that it covers. The kernel's tensor is [channels][taps].
    pub fn load(
        loader: Loader,
        layer: usize,
        (kernel, bias): (TensorRole, Option<TensorRole>),
        taps: usize,
        silu: bool,
    ) -> Result<Self, EngineError> {
        let weights = loader.vector(kernel, layer)?;
        let channels = weights.len() / taps;
        let kernel = transposed(&weights, taps);
        Ok(Self { kernel, bias: bias.and_then(|bias| loader.optional(bias, layer)), channels, taps, silu })
    }

    /// The floats of state per sequence [taps − 1, channels].
    pub fn state_len(&self) -> usize {
        (self.taps - 1) * self.channels
    }

    /// output[t] = Σ kernel[j] · input[t − (taps − 1) + j]. The state supplies the rows before a sequence's first row, and then moves on.
    pub fn run(&self, run: &mut Run, sequences: &[SequenceRows], states: &mut [&mut [f32]], columns: Columns) {
        let (kernels, taps, channels) = (run.kernels, self.taps, self.channels);
        let Columns { input, from, output, to } = columns;
        let mut of_row = vec![0; input.num_rows()];
        for (i, s) in sequences.iter().enumerate() {
            of_row[s.first_row..s.first_row + s.num_rows].fill(i);
        }
        let earlier: Vec<&[f32]> = states.iter().map(|state| &**state).collect();
        output.for_each(run.pool, |i, row| {
            let (state, first) = (earlier[of_row[i]], sequences[of_row[i]].first_row);
            let out = &mut row[to..][..channels];
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
            if self.silu {
                kernels.activate(out, Sigmoidal::Silu);
            }
        });
        for (s, state) in sequences.iter().zip(states) {
            let kept = (taps - 1).saturating_sub(s.num_rows);
            state.copy_within(s.num_rows.min(taps - 1) * channels.., 0);
            for (at, to) in state.chunks_exact_mut(channels).enumerate().skip(kept) {
                let row = s.first_row + s.num_rows - (taps - 1 - at);
                to.copy_from_slice(&input.row(row)[from..][..channels]);
            }
        }
    }
}

/// Transposes [rows][columns] to [columns][rows].
pub fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns;
    (0..matrix.len()).map(|i| matrix[i % rows * columns + i / rows]).collect()
}

/// Splits each state in two: its first `len` floats, and the rest.
pub fn split(states: Vec<&mut [f32]>, len: usize) -> (Vec<&mut [f32]>, Vec<&mut [f32]>) {
    states.into_iter().map(|state| state.split_at_mut(len)).unzip()
}
