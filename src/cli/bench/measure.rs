//! A prompt per sequence, and then decoding of all of them.

use super::steps::{Steps, median};
use crate::engine::{BackendKind, Engine, EngineInfo};
use crate::model::{LayerSpec, ModelSpec};

/// Seconds per decode step of a batch, and prompt tokens per second.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub batch: u32,
    pub prefill: f64,
    pub step: f64,
}

/// What to measure.
pub struct Plan {
    pub prompt: u32,
    pub generate: u32,
    pub repeat: u32,
    pub chunk: u32,
}

impl Plan {
    /// The medians of the runs after the first one.
    pub fn run(&self, engine: &mut dyn Engine, batch: u32) -> anyhow::Result<Measured> {
        let runs = (0..=self.repeat).map(|_| self.once(engine, batch)).collect::<anyhow::Result<Vec<_>>>()?;
        let (prefill, step): (Vec<f64>, Vec<f64>) = runs[1..].iter().copied().unzip();
        Ok(Measured { batch, prefill: f64::from(self.prompt) / median(prefill), step: median(step) })
    }

    /// Seconds to prefill one prompt (the median of the batch), and seconds per decode step of `batch` sequences (the mean of all steps).
    fn once(&self, engine: &mut dyn Engine, batch: u32) -> anyhow::Result<(f64, f64)> {
        let mut steps = Steps::new(engine, batch, self.chunk);
        let mut prefill = Vec::new();
        for sequence in 0..batch {
            prefill.push(steps.prefill(sequence, 0..self.prompt)?);
            // the other sequences need what this one's windows have left
            steps.tables.give_back(sequence, self.prompt as usize);
        }
        let sequences: Vec<u32> = (0..batch).collect();
        let decode = steps.decode(&sequences, self.prompt..self.prompt + self.generate)?;
        Ok((median(prefill), decode))
    }
}

/// Bytes that a decode step behind `context` tokens reads: the weights, and as many float16 keys and values as each layer attends to.
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
