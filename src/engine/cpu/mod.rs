//! The CPU backend: embedded default and oracle. `submit` computes, so one step is in flight.

mod feed_forward;
mod forward;
mod outputs;
mod routing;
pub mod simd;
mod weights;

use std::collections::HashSet;

use super::check::Limits;
use super::{Batch, Engine, EngineError, EngineInfo, Input, KvCapacity, Masks, Sampled, StepId, StepOutput, weight_bytes};
use crate::logits::{Logprobs, SlotState};
use crate::model::{ModelSpec, Weights};
use forward::Forward;
use simd::pool::Pool;
use simd::rows::KvCache;

#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// 0: one a physical core.
    pub threads: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Tokens a block: a multiple of 32.
    pub block_size: usize,
    pub max_slots: usize,
    /// The most rows a batch may have.
    pub max_batch_tokens: usize,
}

/// Opens the CPU engine over a model's mapped weights, with the fastest kernels that the processor runs.
pub fn open(weights: Weights, options: &CpuOptions) -> Result<Box<dyn Engine>, EngineError> {
    let kernels = simd::dispatch::available()[0];
    Ok(Box::new(CpuEngine::new(weights, options, kernels)?))
}

/// What a slot remembers between steps.
struct Slot {
    state: SlotState,
    last: Option<u32>,
    /// Of a sequence that becomes a vector: what its rows add up to so far. Empty before the first.
    pooled: Vec<f64>, // [hidden]
}

pub struct CpuEngine {
    forward: Forward,
    limits: Limits,
    info: EngineInfo,
    slots: Vec<Option<Slot>>,
    steps: u64,
    /// The step that was computed and not collected.
    ready: Option<(StepId, StepOutput)>,
    /// The step whose logits wait to be sampled from.
    unsampled: Option<(StepId, Batch)>,
}

impl CpuEngine {
    pub fn new(weights: Weights, options: &CpuOptions, kernels: &'static simd::Kernels) -> Result<Self, EngineError> {
        if options.block_size == 0 || !options.block_size.is_multiple_of(32) {
            return Err(EngineError::Unsupported(format!("a KV block of {} tokens: the CPU takes multiples of 32", options.block_size)));
        }
        let spec = &weights.spec;
        let limits = Limits {
            kv: KvCapacity { num_blocks: options.num_blocks, block_size: options.block_size },
            vocab_size: spec.vocab_size,
            max_slots: options.max_slots,
            max_batch_tokens: options.max_batch_tokens,
            max_context: (options.num_blocks * options.block_size).min(spec.max_positions().unwrap_or(usize::MAX)),
        };
        let (weight_bytes, step_bytes) = weight_bytes(&weights, |weight| weights.data(weight).len() as u64);
        let (device, max_batch_tokens) = (format!("CPU ({})", kernels.name), options.max_batch_tokens);
        let info = EngineInfo { backend: "cpu", device, weight_bytes, step_bytes, load_bandwidth: None, max_batch_tokens };
        let cache = KvCache::new(spec.num_layers, options.num_blocks, options.block_size, spec.num_kv_heads, spec.head_dim);
        let cache = cache.ok_or_else(|| {
            let (blocks, size) = (options.num_blocks, options.block_size);
            EngineError::OutOfMemory(format!("a KV cache of {blocks} blocks of {size} tokens: ask for less context or a smaller cache"))
        })?;
        let threads = if options.threads == 0 { physical_cores() } else { options.threads };
        let tensors = weights::Tensors::load(kernels, weights)?;
        tracing::info!(kernels = kernels.name, threads, "the CPU engine is open");
        let slots = (0..options.max_slots).map(|_| None).collect();
        let pool = Pool::new(threads).map_err(|error| EngineError::OutOfMemory(format!("{threads} threads: {error}")))?;
        let forward = Forward::new(kernels, tensors, cache, pool, options.context);
        Ok(Self { forward, limits, info, slots, steps: 0, ready: None, unsampled: None })
    }

    fn ids(&self, batch: &Batch) -> Result<Vec<u32>, EngineError> {
        let id = |input: &Input| match *input {
            Input::Token(id) => Some(id),
            Input::Sampled(slot) => self.slots.get(slot as usize)?.as_ref()?.last,
        };
        let ids: Option<Vec<u32>> = batch.inputs.iter().map(id).collect();
        ids.ok_or_else(|| EngineError::InvalidBatch("a row's token is unknown: its slot has not sampled".into()))
    }

    /// What follows the forward pass of the batch that ran last.
    fn finish(&mut self, batch: &Batch, masks: &Masks) -> Result<StepOutput, EngineError> {
        let mut out = StepOutput {
            sampled: vec![Sampled::None; batch.num_seqs()],
            logits: vec![Vec::new(); batch.num_seqs()],
            logprobs: vec![None; batch.num_logprobs.len()],
            ..StepOutput::default()
        };
        let logits = self.forward.logits();
        let sampling = (0..batch.num_seqs()).filter(|&i| batch.sample[i]);
        for (row, i) in sampling.enumerate() {
            if batch.want_logits {
                out.logits[i] = logits.row(row).to_vec();
            }
            let slot = self.slots[batch.slots[i] as usize].as_mut();
            let slot = slot.ok_or_else(|| EngineError::InvalidBatch("a slot was not initialised".into()))?;
            // Sampling destroys its row.
            let raw = batch.num_logprobs(i).map(|n| (n, logits.row(row).to_vec()));
            slot.last = slot.state.sample(logits.row_mut(row), masks.row(i, self.limits.vocab_size));
            if let (Some((n, raw)), Some(id)) = (raw, slot.last) {
                out.logprobs[i] = Logprobs::new(&raw, id, n);
            }
            out.sampled[i] = slot.last.map_or(Sampled::NotFinite, Sampled::Token);
        }
        self.pool(batch, &mut out)?;
        self.score(batch, &mut out);
        Ok(out)
    }
}

impl Engine for CpuEngine {
    fn spec(&self) -> &ModelSpec {
        self.forward.spec()
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.limits.kv
    }

    fn max_slots(&self) -> usize {
        self.limits.max_slots
    }

    fn max_in_flight(&self) -> usize {
        1
    }

    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        if self.ready.is_some() || self.unsampled.is_some() {
            return Err(EngineError::InvalidBatch("the step before was not collected".into()));
        }
        self.limits.check(batch)?;
        for init in &batch.init {
            self.slots[init.slot as usize] =
                Some(Slot { state: SlotState::new(init.params.clone(), &init.prompt, &init.generated), last: None, pooled: Vec::new() });
        }
        let ids = self.ids(batch)?;
        self.forward.run(batch, &ids);
        let step = StepId(self.steps + 1);
        if batch.sample_later {
            self.unsampled = Some((step, batch.clone()));
        } else {
            self.ready = Some((step, self.finish(batch, &Masks::default())?));
        }
        self.steps += 1;
        Ok(step)
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let Some((_, batch)) = self.unsampled.take_if(|(id, _)| *id == step) else {
            return Err(EngineError::InvalidBatch(format!("step {} does not wait to be sampled", step.0)));
        };
        self.limits.check_masks(masks, batch.num_seqs())?;
        self.ready = Some((step, self.finish(&batch, masks)?));
        Ok(())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        if self.unsampled.take_if(|(id, _)| *id == step).is_some() {
            return Err(EngineError::InvalidBatch(format!("step {} was not sampled", step.0)));
        }
        match self.ready.take() {
            Some((id, result)) if id == step => {
                *out = result;
                Ok(())
            }
            other => {
                self.ready = other;
                Err(EngineError::InvalidBatch(format!("step {} is not in flight", step.0)))
            }
        }
    }
}

/// Cores without their hyper-threads: the second thread of a core adds nothing to kernels that fill its vector units.
fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cores = HashSet::new();
    for cpu in 0..4096 {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        match std::fs::read_to_string(path) {
            Ok(siblings) => cores.insert(siblings),
            Err(_) => break,
        };
    }
    if cores.is_empty() { available } else { available.min(cores.len()) }
}
