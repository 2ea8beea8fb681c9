//! Measures decoding after contexts of given lengths.
//!
//! One sequence computes the longest context once, and stops at each shorter one on the way. There, its cache is copied for the other
//! sequences of the batch. The contents of keys and values do not affect the time, and each sequence reads its own blocks.

use super::measure::Measured;
use super::steps::{Steps, greedy, median, rows};
use crate::engine::{Engine, Input};

/// The parameters of a measurement.
pub struct Plan<'a> {
    /// Context lengths before the first measured step [tokens].
    pub contexts: &'a [u32],
    pub batches: &'a [u32],
    pub generate: u32,
    pub repeat: u32,
    pub chunk: u32,
    /// Number of sequence slots, which limits the blocks that a step can copy.
    pub slots: u32,
}

/// One measurement.
pub struct AtDepth {
    pub context: u32,
    pub measured: Measured,
}

impl Plan<'_> {
    /// The highest position that a sequence reaches.
    pub fn most_tokens(&self) -> u32 {
        self.contexts.iter().max().copied().unwrap_or(0).max(1) + ((self.repeat + 1) * self.generate + 1) * self.batches.len() as u32
    }

    pub fn run(&self, engine: &mut dyn Engine) -> anyhow::Result<Vec<AtDepth>> {
        // Blocks before a window are gone, so a sequence with windows cannot go back and decode from the same position again.
        let rewinds = engine.kv_capacity().groups.iter().all(|group| group.window.is_none());
        let mut contexts = self.contexts.to_vec();
        contexts.sort_unstable();
        contexts.dedup();
        let (mut found, mut at, mut seconds) = (Vec::new(), 0, 0.0);
        let mut steps = Steps::new(engine, self.slots, self.chunk);
        self.warm(&mut steps)?;
        for context in contexts {
            let depth = context.max(1);
            if at > depth {
                let Steps { engine, .. } = steps;
                steps = Steps::new(engine, self.slots, self.chunk);
                (at, seconds) = (0, 0.0);
            }
            seconds += steps.prefill(0, at..depth)?;
            // The last row is repeated in the step that makes the copies.
            steps.tables.give_back(0, depth as usize - 1);
            at = depth;
            let prefill = f64::from(depth) / seconds;
            for &batch in self.batches {
                let sequences: Vec<u32> = (0..batch).collect();
                self.join(&mut steps, &sequences, at)?;
                let mut times = Vec::new();
                for run in 0..=self.repeat {
                    let time = steps.decode(&sequences, at + 1..at + 1 + self.generate)?;
                    if !rewinds {
                        at += self.generate;
                    }
                    // The first run is a warm-up.
                    if run > 0 {
                        times.push(time);
                    }
                }
                at += u32::from(!rewinds);
                found.push(AtDepth { context, measured: Measured { batch, prefill, step: median(times) } });
            }
        }
        Ok(found)
    }

    /// Warms the device, whose first steps are slower.
    fn warm(&self, steps: &mut Steps) -> anyhow::Result<()> {
        let depth = self.chunk.min(self.contexts.iter().max().copied().unwrap_or(1)).max(1);
        steps.prefill(0, 0..depth)?;
        let Steps { engine, .. } = steps;
        steps.tables = crate::engine::BlockTables::new(engine.kv_capacity(), self.slots as usize);
        Ok(())
    }

    /// Copies the cache of sequence 0 to the others, and gives each sequence a first token at position `at`.
    fn join(&self, steps: &mut Steps, sequences: &[u32], at: u32) -> anyhow::Result<()> {
        let (mut copies, others) = (Vec::new(), &sequences[1..]);
        for &sequence in others {
            copies.extend(steps.tables.fork(0, sequence)?);
        }
        let has_state = steps.engine.kv_capacity().has_state();
        let mut states: Vec<(u32, u32)> = if has_state { others.iter().map(|&sequence| (0, sequence)).collect() } else { Vec::new() };
        // The row of a step with copies repeats the last row of the context.
        for part in copies.chunks(self.slots.max(1) as usize) {
            let mut step = rows(&[0], at - 1..at);
            step.inputs = vec![Input::Token(steps.token(0, at - 1))];
            step.copies = part.to_vec();
            step.state_copies = std::mem::take(&mut states);
            steps.tables.place(&mut step, &[0])?;
            steps.pipeline.submit(steps.engine, &step)?;
        }
        let mut step = rows(sequences, at..at + 1);
        step.inputs = sequences.iter().map(|&sequence| Input::Token(steps.token(sequence, at))).collect();
        step.init = sequences.iter().map(|&sequence| greedy(sequence)).collect();
        step.state_copies = states;
        steps.tables.place(&mut step, sequences)?;
        steps.pipeline.submit(steps.engine, &step)?;
        steps.pipeline.collect(steps.engine, 0)
    }
}
