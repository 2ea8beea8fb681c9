//! The seam between the scheduler and a backend: one flat [`Batch`] down a step, one [`StepOutput`] up.

mod check;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "without_cuda.rs"]
mod cuda;
mod footprint;
mod rope;

use std::sync::Arc;

use crate::logits::{Logprobs, MAX_LOGPROBS, SamplingParams, mask_words};
use crate::model::{ModelSpec, TensorSlot, Weight, Weights};
pub use cuda::end_process;
use footprint::Share;
pub use footprint::{Footprint, footprints};

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

/// A row whose distribution is wanted though nothing is drawn from it: how likely was the token that follows it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scored {
    /// Of the batch.
    pub row: u32,
    /// The token that follows the row.
    pub id: u32,
    /// As in [`Batch::num_logprobs`].
    pub num_logprobs: u8,
}

/// How a sequence's rows, after the final norm, become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The row at position 0.
    First,
    Last,
    /// The mean of all rows, added in the order of their positions.
    Mean,
}

/// A sequence's part in a vector. It begins with position 0, without a cached prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    pub kind: Pooling,
    /// The sequence ends with this step: hand the vector out.
    pub complete: bool,
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
    /// [num_seqs] Some(n): the log-probabilities of the sampled id and of the n likeliest, n <= 20. Empty: nobody asks.
    pub num_logprobs: Vec<Option<u8>>,
    /// (from, to): whole blocks that are copied before the step's rows are written.
    pub copies: Vec<(u32, u32)>,
    pub scored: Vec<Scored>,      // [num_scored] in the order of their rows
    pub pools: Vec<Option<Pool>>, // [num_seqs] or empty: nobody asks
    pub sample_later: bool,       // nothing is sampled before `Engine::sample`: its masks are not known yet
    pub want_logits: bool,        // copy the raw logits of every sampled row into the output (tests, `penstock logits`)
}

/// What the sequences of a step may sample. They are made while the step's forward pass runs: see [`Batch::sample_later`].
#[derive(Clone, Debug, Default)]
pub struct Masks {
    pub words: Vec<u32>,      // [num_masks, ceil(vocab / 32)] a bit an id: 0 forbids it
    pub of: Vec<Option<u32>>, // [num_seqs] a sequence's row of `words`; None: all is allowed
}

impl Batch {
    pub fn num_tokens(&self) -> usize {
        self.inputs.len()
    }

    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }

    /// How many log-probabilities sequence `i` asks for, beside that of what it samples.
    fn num_logprobs(&self, i: usize) -> Option<usize> {
        self.num_logprobs.get(i)?.map(usize::from)
    }
}

impl Masks {
    /// What sequence `i` may sample.
    fn row(&self, i: usize, vocab: usize) -> Option<&[u32]> {
        let index = (*self.of.get(i)?)? as usize;
        Some(&self.words[index * mask_words(vocab)..][..mask_words(vocab)])
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
    /// [num_seqs] of the raw logits, where a sequence asked and got a token; None also where the raw row is no distribution, since a
    /// mask hid a +inf. Empty: nobody asked.
    pub logprobs: Vec<Option<Logprobs>>,
    /// [num_scored] of the raw logits; None: the row is no distribution.
    pub scored: Vec<Option<Logprobs>>,
    pub pooled: Vec<Vec<f32>>, // [num_seqs][hidden] of those that are complete, else empty; empty: nobody asked
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCapacity {
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// On the GPU where there is one, else on the CPU.
    Auto,
    Cpu,
    Cuda,
}

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// CPU threads; 0: one a physical core.
    pub threads: usize,
    /// Index of the GPU.
    pub device: u32,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Tokens in the KV pool, at least one context. 0: one context on the CPU; on a GPU what its memory holds.
    pub kv_tokens: usize,
    /// Of the GPU's whole memory: what may be in use once the KV pool is there.
    pub gpu_memory_fraction: f64,
    /// Tokens a KV block: a multiple of 32.
    pub block_size: usize,
    /// The most sequences a batch may have. 0: 32 on the CPU, 256 on a GPU.
    pub max_slots: usize,
    /// The most rows a batch may have. 0: 512 on the CPU, 2048 on a GPU, and one for each slot at least.
    pub max_batch_tokens: usize,
}

/// Slots and rows for an engine's own choice: on the CPU more of them gain nothing, a GPU is idle with fewer.
const CPU_LOAD: [usize; 2] = [32, 512];
const GPU_LOAD: [usize; 2] = [256, 2048];

impl EngineOptions {
    fn filled(&self, [slots, rows]: [usize; 2]) -> Self {
        let max_slots = if self.max_slots == 0 { slots } else { self.max_slots };
        let max_batch_tokens = if self.max_batch_tokens == 0 { rows.max(max_slots) } else { self.max_batch_tokens };
        Self { max_slots, max_batch_tokens, ..self.clone() }
    }

    fn for_cpu(&self) -> cpu::CpuOptions {
        let tokens = if self.kv_tokens == 0 { self.context } else { self.kv_tokens };
        cpu::CpuOptions {
            threads: self.threads,
            context: self.context,
            num_blocks: tokens.div_ceil(self.block_size.max(1)),
            block_size: self.block_size,
            max_slots: self.max_slots,
            max_batch_tokens: self.max_batch_tokens,
        }
    }
}

/// Opens an engine over a model's mapped weights.
///
/// # Errors
/// [`EngineError::NoDevice`] where the GPU was asked for and there is none. With [`Backend::Auto`] the CPU takes its place; a model that
/// does not fit on a GPU that is there is an error all the same.
pub fn open(weights: Weights, options: &EngineOptions, backend: Backend) -> Result<Box<dyn Engine>, EngineError> {
    if backend != Backend::Cpu {
        match cuda::Device::open(options.device) {
            Ok(device) => return device.engine(weights, &options.filled(GPU_LOAD)),
            Err(EngineError::NoDevice(why)) if backend == Backend::Auto => tracing::info!("{why}: computing on the CPU"),
            Err(error) => return Err(error),
        }
    }
    cpu::open(weights, &options.filled(CPU_LOAD).for_cpu())
}

/// A GPU's memory now, whoever holds it.
///
/// # Errors
/// [`EngineError::NoDevice`] where there is none, or the build is without CUDA.
pub fn device_memory(device: u32) -> Result<DeviceMemory, EngineError> {
    cuda::Device::open(device)?.memory()
}

/// What an engine is and holds, for those who measure it.
#[derive(Clone, Debug, Default)]
pub struct EngineInfo {
    /// "cpu" or "cuda"
    pub backend: &'static str,
    pub device: String,
    /// Bytes of all weights where they are computed with.
    pub weight_bytes: u64,
    /// Of these, what a decode step reads.
    pub step_bytes: u64,
    /// Bytes of the file a second while the weights were copied to the device; None: they were not copied.
    pub load_bandwidth: Option<f64>,
    /// The most rows a batch may have.
    pub max_batch_tokens: usize,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    pub free: u64,
    pub total: u64,
    /// What the engine holds, by its own count.
    pub held: u64,
}

/// Bytes of all weights, and of those that a decode step of one sequence reads: a token embedding beside a head of its own gives a row
/// only, and so do learned positions; of experts a few are read.
fn weight_bytes(weights: &Weights, size: impl Fn(&Weight) -> u64) -> (u64, u64) {
    let tied = has_tied_head(weights);
    let experts = weights.spec.experts.unwrap_or_default();
    let (mut all, mut step) = (0, 0);
    // a tied head stands in the table twice
    for ((slot, _), weight) in weights.by_slot.iter().filter(|((slot, _), _)| !(tied && *slot == TensorSlot::Output)) {
        let bytes = size(weight);
        all += bytes;
        step += match slot {
            TensorSlot::TokenEmbd if !tied => 0,
            TensorSlot::PositionEmbd => 0,
            slot if slot.is_routed() => bytes / experts.count as u64 * experts.used as u64,
            _ => bytes,
        };
    }
    (all, step)
}

/// Is the token embedding the head, too?
fn has_tied_head(weights: &Weights) -> bool {
    let tensor = |slot| weights.get(slot, 0).map(|weight| weight.tensor);
    tensor(TensorSlot::Output) == tensor(TensorSlot::TokenEmbd)
}

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no GPU to compute on: no device, no driver, or not in this build.
    #[error("{0}")]
    NoDevice(String),
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
    /// What it is and holds.
    fn info(&self) -> EngineInfo {
        EngineInfo::default()
    }
    /// A device's memory now; None: the engine has none of its own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }
    /// Bytes a second that a copy within the device's memory reads and writes, measured now; None: it cannot tell.
    fn copy_bandwidth(&mut self) -> Option<f64> {
        None
    }
    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError>;
    /// Samples the step that was submitted last, whose batch said [`Batch::sample_later`]; no other may be submitted before.
    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError>;
    /// Waits for a step; steps are collected in the order of their submission. One that waits to be sampled is dropped with an error.
    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_the_backends_own_choice() {
        let options = |max_slots, max_batch_tokens| EngineOptions {
            threads: 0,
            device: 0,
            context: 64,
            kv_tokens: 0,
            gpu_memory_fraction: 0.9,
            block_size: 32,
            max_slots,
            max_batch_tokens,
        };
        let filled = |slots, rows, load| {
            let options = options(slots, rows).filled(load);
            (options.max_slots, options.max_batch_tokens)
        };
        assert_eq!(filled(0, 0, CPU_LOAD), (32, 512));
        assert_eq!(filled(0, 0, GPU_LOAD), (256, 2048));
        assert_eq!(filled(7, 9, GPU_LOAD), (7, 9));
        assert_eq!(filled(0, 100, GPU_LOAD), (256, 100));
        assert_eq!(filled(1000, 0, CPU_LOAD), (1000, 1000), "every sequence finds room for a row");
    }
}
