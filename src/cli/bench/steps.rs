//! Drives an engine without a scheduler: prompts, and decoding of several sequences.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{Batch, BlockTables, Engine, Input, SlotInit, StepId, StepOutput};
use crate::logits::SamplingParams;

/// Keeps as many steps in flight as the engine allows.
#[derive(Default)]
pub struct Pipeline {
    in_flight: VecDeque<StepId>,
    out: StepOutput,
}

impl Pipeline {
    pub fn submit(&mut self, engine: &mut dyn Engine, batch: &Batch) -> anyhow::Result<()> {
        self.in_flight.push_back(engine.submit(batch)?);
        let left = engine.max_in_flight().saturating_sub(1);
        self.collect(engine, left)
    }

    /// Collects all but the last `left` steps.
    pub fn collect(&mut self, engine: &mut dyn Engine, left: usize) -> anyhow::Result<()> {
        while self.in_flight.len() > left {
            let Some(step) = self.in_flight.pop_front() else { break };
            engine.collect(step, &mut self.out)?;
        }
        Ok(())
    }
}

/// Runs steps of sequences on an engine.
pub struct Steps<'a> {
    pub engine: &'a mut dyn Engine,
    pub tables: BlockTables,
    pub pipeline: Pipeline,
    /// Rows per step of a prompt.
    pub chunk: u32,
}

impl<'a> Steps<'a> {
    pub fn new(engine: &'a mut dyn Engine, num_seqs: u32, chunk: u32) -> Self {
        let tables = BlockTables::new(engine.kv_capacity(), num_seqs as usize);
        Self { engine, tables, pipeline: Pipeline::default(), chunk }
    }

    /// A token id within the vocabulary that depends on sequence and position.
    pub fn token(&self, sequence: u32, position: u32) -> u32 {
        let vocab = self.engine.spec().vocab_size as u64;
        ((u64::from(position) * 7919 + u64::from(sequence) * 104_729 + 17) % vocab.max(1)) as u32
    }

    /// Computes positions of a prompt. Returns the time taken [s].
    pub fn prefill(&mut self, sequence: u32, positions: Range<u32>) -> anyhow::Result<f64> {
        let start = Instant::now();
        for first in positions.clone().step_by(self.chunk as usize) {
            let end = positions.end.min(first + self.chunk);
            let mut step = rows(&[sequence], first..end);
            step.inputs = (first..end).map(|position| Input::Token(self.token(sequence, position))).collect();
            if end < positions.end {
                step.sampled_rows.clear();
            }
            if first == 0 {
                step.init = vec![greedy(sequence)];
            }
            self.tables.place(&mut step, &[sequence])?;
            self.pipeline.submit(self.engine, &step)?;
        }
        self.pipeline.collect(self.engine, 0)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Decodes all sequences, one step per position, each from the token that its sequence slot sampled. Returns the time per step [s].
    pub fn decode(&mut self, sequences: &[u32], positions: Range<u32>) -> anyhow::Result<f64> {
        let (start, num_steps) = (Instant::now(), positions.len().max(1));
        for position in positions {
            let mut step = rows(sequences, position..position + 1);
            self.tables.place(&mut step, sequences)?;
            self.pipeline.submit(self.engine, &step)?;
        }
        self.pipeline.collect(self.engine, 0)?;
        Ok(start.elapsed().as_secs_f64() / num_steps as f64)
    }
}

/// The initial sampling state of a sequence.
pub fn greedy(sequence: u32) -> SlotInit {
    SlotInit { slot: sequence, params: Arc::new(SamplingParams::greedy()), prompt: [].into(), generated: Vec::new() }
}

/// A batch of the same positions in several sequences. Each sequence continues with the token that its sequence slot sampled.
pub fn rows(sequences: &[u32], positions: Range<u32>) -> Batch {
    let each = positions.len() as u32;
    let num = sequences.len();
    Batch {
        inputs: sequences.iter().flat_map(|&s| (0..each).map(move |_| Input::Sampled(s))).collect(),
        positions: sequences.iter().flat_map(|_| positions.clone()).collect(),
        cu_seqlens_q: (0..=num as u32).map(|i| i * each).collect(),
        context_lens: vec![positions.end; num],
        sequence_slots: sequences.to_vec(),
        sampled_rows: (1..=num as u32).map(|i| i * each - 1).collect(),
        ..Batch::default()
    }
}

/// The median of some values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
