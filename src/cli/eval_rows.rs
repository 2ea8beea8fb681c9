//! Runs a chunk of a text through an engine and hands out the logits of its rows, a few at a time.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::{BackendKind, Batch, Engine, Input, SlotInit, StepOutput, Tables};
use crate::logits::SamplingParams;

/// Rows per step without logits.
pub const CHUNK: usize = 256;
/// Bytes of logits that a step may return.
const LOGITS_BYTES: usize = 32 << 20;
/// The most rows per step with logits.
const MOST_ROWS: usize = 64;

/// How many rows of logits a step returns on the CPU: no more than fit into a fixed amount of memory.
pub fn rows_at_once(vocab: usize) -> usize {
    (LOGITS_BYTES / 4 / vocab.max(1)).clamp(1, MOST_ROWS)
}

/// An engine that reads one chunk after the other.
pub struct Rows {
    pub engine: Box<dyn Engine>,
    tables: Tables,
    out: StepOutput,
    params: Arc<SamplingParams>,
}

impl Rows {
    pub fn new(engine: Box<dyn Engine>) -> Self {
        let tables = Tables::new(engine.kv_capacity(), 1);
        Self { engine, tables, out: StepOutput::default(), params: Arc::new(SamplingParams::greedy()) }
    }

    /// Whether a step returns the logits of several rows of a sequence.
    pub fn takes_many(&self) -> bool {
        self.engine.info().backend == BackendKind::Cpu
    }

    /// Reads `ids[range]`, which follows what was read before, without logits.
    pub fn skip(&mut self, ids: &[u32], range: Range<usize>) -> anyhow::Result<()> {
        for start in range.clone().step_by(CHUNK) {
            self.step(ids, start..range.end.min(start + CHUNK), false)?;
        }
        Ok(())
    }

    /// Reads `ids[range]`, which follows what was read before, and returns the logits of each row.
    pub fn read(&mut self, ids: &[u32], range: Range<usize>) -> anyhow::Result<Vec<Vec<f32>>> {
        if self.takes_many() {
            return self.step(ids, range, true);
        }
        let mut rows = Vec::with_capacity(range.len());
        for row in range {
            rows.append(&mut self.step(ids, row..row + 1, true)?);
        }
        Ok(rows)
    }

    fn step(&mut self, ids: &[u32], range: Range<usize>, logits: bool) -> anyhow::Result<Vec<Vec<f32>>> {
        let mut init = Vec::new();
        if range.start == 0 {
            // a new chunk: its blocks are all free
            self.tables = Tables::new(self.engine.kv_capacity(), 1);
            init.push(SlotInit { slot: 0, params: self.params.clone(), prompt: [].into(), generated: Vec::new() });
        }
        let len = range.len() as u32;
        let mut batch = Batch {
            inputs: ids[range.clone()].iter().map(|&id| Input::Token(id)).collect(),
            positions: (range.start as u32..range.end as u32).collect(),
            cu_seqlens_q: vec![0, len],
            context_lens: vec![range.end as u32],
            engine_slots: vec![0],
            sampled_rows: if logits { (0..len).collect() } else { Vec::new() },
            init,
            want_logits: logits,
            ..Batch::default()
        };
        self.tables.place(&mut batch, &[0])?;
        let step = self.engine.submit(&batch)?;
        self.engine.collect(step, &mut self.out)?;
        Ok(std::mem::take(&mut self.out.logits))
    }
}
