//! Runs sequences of token ids through an engine, one after the other, and returns logits or vectors.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};

use super::device::DeviceArgs;
use crate::config::Backend;
use crate::engine::{
    self, BackendKind, Batch, BlockTables, Engine, EngineOptions, Input, SequenceAdapters, SlotInit, StepOutput, VectorRequest,
};
use crate::gguf::GgufFile;
use crate::logits::SamplingParams;
use crate::model::Weights;
use crate::registry::backend;

/// Rows per step without logits.
pub const CHUNK: usize = 256;
/// The most logits that a step may return [bytes].
const LOGITS_BYTES: usize = 32 << 20;
/// The most rows per step with logits.
const MOST_ROWS: usize = 64;

/// The number of rows whose logits a step returns on the CPU, so that they fit into a fixed amount of memory.
pub fn rows_at_once(vocab: usize) -> usize {
    (LOGITS_BYTES / 4 / vocab.max(1)).clamp(1, MOST_ROWS)
}

/// The wanted results of a step.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Nothing,
    /// The logits of each row.
    Rows,
    /// The logits of the last row.
    Last,
    /// The draft head's logits of the last row.
    Draft,
    /// The pooled vector of a sequence, once the step completes it.
    Vector {
        complete: bool,
    },
}

/// Runs an engine on one sequence after the other.
pub struct Rows {
    pub engine: Box<dyn Engine>,
    tables: BlockTables,
    out: StepOutput,
    params: Arc<SamplingParams>,
    /// The adapters of the sequence.
    pub adapters: SequenceAdapters,
}

impl Rows {
    pub fn new(engine: Box<dyn Engine>) -> Self {
        let tables = BlockTables::new(engine.kv_capacity(), 1);
        Self {
            engine,
            tables,
            out: StepOutput::default(),
            params: Arc::new(SamplingParams::greedy()),
            adapters: SequenceAdapters::default(),
        }
    }

    /// Opens a model. A step has at most `most_rows` rows, unless all rows see each other.
    pub fn open(device: &DeviceArgs, vectors: bool, file: &Path, context: usize, most_rows: usize) -> anyhow::Result<Self> {
        let options = EngineOptions { context, kv_tokens: context, max_batch_tokens: most_rows, ..EngineOptions::default() };
        Self::open_with(device, vectors, file, options)
    }

    /// Opens a model with its draft head.
    pub fn open_draft_head(device: &DeviceArgs, file: &Path, context: usize) -> anyhow::Result<Self> {
        let sizes = EngineOptions { context, kv_tokens: context, max_batch_tokens: CHUNK, ..EngineOptions::default() };
        let rows = Self::open_with(device, false, file, EngineOptions { draft_head: true, ..sizes })?;
        let backend = rows.engine.info().backend;
        ensure!(backend == BackendKind::Cpu, "draft heads on {}: use the CPU", backend.title());
        ensure!(rows.engine.info().draft_head.is_some(), "{}: the file has no draft head (tensors blk.N.nextn.*)", file.display());
        Ok(rows)
    }

    fn open_with(device: &DeviceArgs, vectors: bool, file: &Path, options: EngineOptions) -> anyhow::Result<Self> {
        let weights = Weights::load(Arc::new(GgufFile::open(file)?))?;
        let (index, chosen) = (device.index(), device.backend(Backend::Cpu)?);
        let max_batch_tokens = if weights.spec.arch.bidirectional { options.context } else { options.max_batch_tokens };
        ensure!(vectors || !weights.spec.arch.bidirectional, "{}: the model gives vectors, not logits: add --vectors", file.display());
        let options = EngineOptions { device: index, cache_type: device.cache_type(), max_slots: 1, max_batch_tokens, ..options };
        let engine = engine::open(weights, &options, backend(chosen)).with_context(|| format!("--backend {}", chosen.name()))?;
        Ok(Self::new(engine))
    }

    /// Whether a step can return the logits of several rows of a sequence.
    pub fn takes_many(&self) -> bool {
        self.engine.info().backend == BackendKind::Cpu
    }

    /// Reads `ids[range]`, the continuation of the rows read so far, without logits.
    pub fn skip(&mut self, ids: &[u32], range: Range<usize>) -> anyhow::Result<()> {
        for start in range.clone().step_by(CHUNK) {
            self.step(ids, start..range.end.min(start + CHUNK), Wanted::Nothing)?;
        }
        Ok(())
    }

    /// Reads `ids[range]`, the continuation of the rows read so far, and returns the logits of each row.
    pub fn read(&mut self, ids: &[u32], range: Range<usize>) -> anyhow::Result<Vec<Vec<f32>>> {
        if self.takes_many() {
            self.step(ids, range, Wanted::Rows)?;
            return Ok(std::mem::take(&mut self.out.logits));
        }
        let mut rows = Vec::with_capacity(range.len());
        for row in range {
            self.step(ids, row..row + 1, Wanted::Rows)?;
            rows.append(&mut self.out.logits);
        }
        Ok(rows)
    }

    /// The logits after the last token of a sequence.
    pub fn last(&mut self, ids: &[u32]) -> anyhow::Result<Vec<f32>> {
        let start = (ids.len() - 1) / CHUNK * CHUNK;
        self.skip(ids, 0..start)?;
        self.step(ids, start..ids.len(), Wanted::Last)?;
        Ok(self.out.logits.swap_remove(0))
    }

    /// The draft head's logits at the last token of a sequence: what it says about the token behind the next one.
    pub fn last_draft(&mut self, ids: &[u32]) -> anyhow::Result<Vec<f32>> {
        let start = (ids.len() - 1) / CHUNK * CHUNK;
        self.skip(ids, 0..start)?;
        self.step(ids, start..ids.len(), Wanted::Draft)?;
        Ok(self.out.draft_logits.swap_remove(0))
    }

    /// The pooled vector of a sequence.
    pub fn vector(&mut self, ids: &[u32]) -> anyhow::Result<Vec<f32>> {
        // each row of a bidirectional model sees all others, so one step holds them all
        let chunk = if self.engine.spec().arch.bidirectional { ids.len() } else { CHUNK };
        for start in (0..ids.len()).step_by(chunk) {
            let end = ids.len().min(start + chunk);
            self.step(ids, start..end, Wanted::Vector { complete: end == ids.len() })?;
        }
        Ok(self.out.vectors.swap_remove(0))
    }

    /// The logits behind the rows of a whole prompt, in one step.
    pub fn last_of(&mut self, prompt: Batch) -> anyhow::Result<Vec<f32>> {
        let count = prompt.inputs.len();
        self.run(prompt, 0..count, Wanted::Last)?;
        Ok(self.out.logits.swap_remove(0))
    }

    fn step(&mut self, ids: &[u32], range: Range<usize>, wanted: Wanted) -> anyhow::Result<()> {
        let batch = Batch {
            inputs: ids[range.clone()].iter().map(|&id| Input::Token(id)).collect(),
            positions: (range.start as u32..range.end as u32).collect(),
            ..Batch::default()
        };
        self.run(batch, range, wanted)
    }

    /// Runs the inputs and positions of a batch as the rows `range` of the sequence.
    fn run(&mut self, inputs: Batch, range: Range<usize>, wanted: Wanted) -> anyhow::Result<()> {
        let mut init = Vec::new();
        if range.start == 0 {
            // a new sequence starts with all blocks free
            self.tables = BlockTables::new(self.engine.kv_capacity(), 1);
            init.push(SlotInit { slot: 0, params: self.params.clone(), prompt: [].into(), generated: Vec::new() });
        }
        let len = range.len() as u32;
        let mut batch = Batch {
            cu_seqlens_q: vec![0, len],
            context_lens: vec![range.end as u32],
            sequence_slots: vec![0],
            sampled_rows: match wanted {
                Wanted::Rows => (0..len).collect(),
                Wanted::Last | Wanted::Draft => vec![len - 1],
                Wanted::Nothing | Wanted::Vector { .. } => Vec::new(),
            },
            vectors: match wanted {
                Wanted::Vector { complete } => vec![Some(VectorRequest { pooling: self.engine.spec().pooling, complete })],
                _ => Vec::new(),
            },
            init,
            want_logits: matches!(wanted, Wanted::Rows | Wanted::Last),
            want_draft_logits: wanted == Wanted::Draft,
            adapters: if self.adapters.is_empty() { Vec::new() } else { vec![self.adapters.clone()] },
            ..inputs
        };
        self.tables.place(&mut batch, &[0])?;
        let step = self.engine.submit(&batch)?;
        self.engine.collect(step, &mut self.out)?;
        Ok(())
    }
}
