//! The seam between the scheduler and a backend: one flat [`Batch`] down a step, one [`StepOutput`] up.

pub mod cpu;

use std::sync::Arc;

use crate::logits::SamplingParams;
use crate::model::ModelSpec;

/// Where a row's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A token id known to the host.
    Token(u32),
    /// The id that this engine slot sampled in the step before: it need not have visited the host.
    Sampled(u32),
}

/// (Re)initialises an engine slot before the step that carries it: sampling state lives beside the engine.
#[derive(Clone, Debug)]
pub struct SlotInit {
    pub slot: u32,
    pub params: Arc<SamplingParams>,
    /// The prompt's ids: the repetition penalty sees them.
    pub prompt: Arc<[u32]>,
    /// Ids generated so far; not empty when a preempted sequence resumes.
    pub generated: Vec<u32>,
}

/// One step's work as flat arrays. A sequence is a run of consecutive rows; decode is a run of one.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub inputs: Vec<Input>,     // [num_tokens]
    pub positions: Vec<u32>,    // [num_tokens] absolute position of each row
    pub cu_seqlens_q: Vec<u32>, // [num_seqs + 1] rows of sequence i: cu_seqlens_q[i]..cu_seqlens_q[i + 1]
    pub context_lens: Vec<u32>, // [num_seqs] tokens in the cache once this step has run
    pub slot_mapping: Vec<u32>, // [num_tokens] block * block_size + offset where the row's K and V go
    pub block_tables: Vec<u32>, // [num_seqs, max_blocks] row-major, padded with 0
    pub max_blocks: usize,
    pub slots: Vec<u32>,     // [num_seqs] engine slot of each sequence
    pub sample: Vec<bool>,   // [num_seqs] sample from the last row? false inside a prompt
    pub init: Vec<SlotInit>, // slots to (re)initialise first
    pub want_logits: bool,   // copy the raw logits of every sampled row into the output (tests, `penstock logits`)
}

impl Batch {
    pub fn num_tokens(&self) -> usize {
        self.inputs.len()
    }

    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepId(pub u64);

/// What a sequence got from a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// The row did not ask for a token.
    None,
    Token(u32),
    /// Its logits held NaN or only infinities: this request alone fails.
    NotFinite,
}

#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    pub sampled: Vec<Sampled>, // [num_seqs]
    pub logits: Vec<Vec<f32>>, // [num_seqs][vocab] where wanted and sampled, else empty
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCapacity {
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("invalid batch: {0}")]
    InvalidBatch(String),
    #[error("unsupported: {0}")]
    Unsupported(String),
    #[error("out of memory: {0}")]
    OutOfMemory(String),
    #[error("tensor {0}")]
    Tensor(String),
    /// The device is lost: only a new process helps.
    #[error("device fault: {0}")]
    Device(String),
}

/// A backend, owned by one thread. Every output element is accumulated in one fixed order, so that a request's logits
/// have the same bits alone, in any batch, at any chunking of its prompt and after a preemption.
pub trait Engine: Send {
    fn spec(&self) -> &ModelSpec;
    fn kv_capacity(&self) -> KvCapacity;
    /// Slots that may be alive at once (the most sequences in a batch).
    fn max_slots(&self) -> usize;
    /// Steps that may be in flight: 2 where the device runs beside the host, 1 where `submit` itself computes.
    fn max_in_flight(&self) -> usize;
    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError>;
    /// Waits for a step; steps are collected in the order of their submission.
    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError>;
}
