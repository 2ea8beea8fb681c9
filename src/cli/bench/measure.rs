//! Measures the prefill of one prompt per sequence, and then decoding of all sequences.

use super::steps::{Steps, median};
use crate::engine::{BackendKind, Engine, EngineInfo};
use crate::model::{LayerSpec, ModelSpec};

/// The speed of a batch: prefill [tokens per second] and one decode step [s].
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub batch: u32,
    pub prefill: f64,
    pub step: f64,
}

/// The parameters of a measurement.
pub struct Plan {
    pub prompt: u32,
    pub generate: u32,
    pub repeat: u32,
    pub chunk: u32,
}

impl Plan {
    /// Measures `repeat` runs after a warm-up run, and returns the medians.
    pub fn run(&self, engine: &mut dyn Engine, batch: u32) -> anyhow::Result<Measured> {
        let runs = (0..=self.repeat).map(|_| self.once(engine, batch)).collect::<anyhow::Result<Vec<_>>>()?;
        let (prefill, step): (Vec<f64>, Vec<f64>) = runs[1..].iter().copied().unzip();
        Ok(Measured { batch, prefill: f64::from(self.prompt) / median(prefill), step: median(step) })
    }

    /// Times one run: the prefill of one prompt (median of the batch) and one decode step of `batch` sequences (mean of all steps) [s].
    fn once(&self, engine: &mut dyn Engine, batch: u32) -> anyhow::Result<(f64, f64)> {
        let mut steps = Steps::new(engine, batch, self.chunk);
        let mut prefill = Vec::new();
        for sequence in 0..batch {
            prefill.push(steps.prefill(sequence, 0..self.prompt)?);
            // the other sequences need the blocks that this one's windows no longer cover
            steps.tables.give_back(sequence, self.prompt as usize);
        }
        let sequences: Vec<u32> = (0..batch).collect();
        let decode = steps.decode(&sequences, self.prompt..self.prompt + self.generate)?;
        Ok((median(prefill), decode))
    }
}

/// Memory that a decode step after `context` tokens reads: the weights, and the float16 keys and values that each layer attends to [bytes].
/// None on a CPU, whose caches hold a part of them.
pub fn step_bytes(spec: &ModelSpec, info: &EngineInfo, context: usize, batch: u32) -> Option<f64> {
    let of_layer = |layer: &LayerSpec| {
        let kept = layer.cached().map_or(0, |kept| kept.heads * (kept.key + kept.value));
        let window = layer.attention().and_then(|attention| attention.window);
        2 * kept * window.map_or(context, |window| window.min(context))
    };
    let kept: usize = spec.layers.iter().map(of_layer).sum();
    (info.backend != BackendKind::Cpu).then(|| info.step_bytes as f64 + kept as f64 * f64::from(batch))
}
