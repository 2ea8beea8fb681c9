//! [`CpuEngine`]: runs steps on the CPU and keeps the sequence slots.

use std::collections::HashSet;

use super::cache_parts;
use super::cut::Cut;
use super::draft_head::{self, DraftHead};
use super::forward::Forward;
use super::group::MemorySizes;
use super::layout::whole_layout;
use super::simd::Kernels;
use super::simd::pool::ThreadPool;
use crate::check::Limits;
use crate::info::weight_bytes;
use crate::memory_ledger::CacheEntry;
use crate::pool_blocks::grown_blocks;
use crate::rope::ropes;
use crate::{
    Adapter, BackendKind, Batch, CacheGroup, CachePart, CacheType, DraftRequest, Engine, EngineError, EngineInfo, Input, KvCapacity, Masks,
    PortableCache, Progress, StepId, StepOutput,
};
use logits::SamplingState;
use model::{ModelSpec, Source, Weights};

/// The time of a row of a decode step, in units of the step's time without rows: an estimate for models of 0.1 to 1 billion weights.
const ROW_COST: f64 = 0.2;

#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// The number of threads. 0: one per physical core.
    pub threads: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The most KV blocks in the pool.
    pub num_blocks: usize,
    /// The number of KV blocks that always have memory.
    pub least_blocks: usize,
    /// Tokens per block: a multiple of 32.
    pub block_size: usize,
    /// How keys and values are stored.
    pub cache_type: CacheType,
    /// The number of sequence slots.
    pub max_slots: usize,
    /// The most rows per batch.
    pub max_batch_tokens: usize,
    /// The number of state slots, for models with recurrent state.
    pub state_slots: usize,
    /// The most recurrent states that a step keeps to go back behind wrong drafts.
    pub draft_states: usize,
    /// Whether the model's draft head runs along, if its file has one.
    pub draft_head: bool,
    /// The most adapters that are loaded at once.
    pub max_adapters: usize,
    /// How the model is cut. The parts run in turn, as several devices would run them, and give the bits of the whole.
    pub cut: Cut,
}

/// The state that a sequence slot keeps between steps.
pub(super) struct SequenceSlot {
    pub(super) sampler: SamplingState,
    /// The id that was sampled last.
    pub(super) last: Option<u32>,
    /// The sum of the sequence's rows so far, if they are pooled to a vector. Empty before the first row.
    pub(super) sum: Vec<f64>, // [hidden]
}

pub struct CpuEngine {
    pub(super) forward: Forward,
    /// The files that every step reads its weights from.
    source: Source,
    progress: Progress,
    pub(super) limits: Limits,
    info: EngineInfo,
    entry: CacheEntry,
    pub(super) slots: Vec<Option<SequenceSlot>>,
    /// [max_adapters] whether a place has an adapter.
    is_loaded: Vec<bool>,
    steps: u64,
    /// A step that was computed but not collected.
    ready: Option<(StepId, StepOutput)>,
    /// A step whose logits are not sampled from yet. Its inputs are tokens and embeddings.
    unsampled: Option<(StepId, Batch)>,
}

impl CpuEngine {
    pub fn new(weights: Weights, options: &CpuOptions, kernels: &'static Kernels) -> Result<Self, EngineError> {
        if options.block_size == 0 || !options.block_size.is_multiple_of(32) {
            return Err(EngineError::Unsupported(format!("a KV block of {} tokens: the CPU takes multiples of 32", options.block_size)));
        }
        let spec = &weights.spec;
        let kv = KvCapacity {
            num_blocks: options.num_blocks,
            block_size: options.block_size,
            groups: CacheGroup::of(spec),
            num_state_slots: if spec.is_recurrent() { options.state_slots } else { 0 },
            cache_type: options.cache_type,
        };
        let limits = Limits {
            max_context: kv.max_tokens().min(spec.max_positions().unwrap_or(usize::MAX)),
            num_backed: options.least_blocks.clamp(1, kv.num_blocks.max(1)),
            kv,
            vocab_size: spec.vocab_size,
            embedding_width: spec.embedding_width(),
            num_token_types: spec.num_token_types,
            max_slots: options.max_slots,
            max_batch_tokens: options.max_batch_tokens,
            bidirectional: spec.arch.bidirectional,
            loops: None,
            refuses_grids: spec.rope_sections.is_none().then_some("the model rotates by one"),
            refuses_rows: None,
            max_adapters: options.max_adapters,
        };
        let (weight_bytes, step_bytes) = weight_bytes(&weights, |weight| weight.num_bytes() as u64);
        let mut info = EngineInfo {
            backend: BackendKind::Cpu,
            device: format!("CPU ({})", kernels.name),
            index: 0,
            kv_block_bytes: whole_layout(&weights, options.cache_type)?.bytes(1, options.block_size).unwrap_or(u64::MAX),

            weight_bytes,
            step_bytes,
            load_bandwidth: None,
            max_batch_tokens: options.max_batch_tokens,
            row_cost: ROW_COST,
            draft_head: None,
            draft_states: if spec.is_recurrent() { options.draft_states } else { 0 },
            loop_times: None,
        };
        let (state_slots, draft_states) = (limits.kv.num_state_slots, info.draft_states);
        let &CpuOptions { num_blocks, block_size, cache_type, .. } = options;
        let sizes = MemorySizes { num_blocks, block_size, cache_type, state_slots, draft_states };
        let source = Source::of(&weights);
        let threads = if options.threads == 0 { physical_cores() } else { options.threads };
        let (ropes, links) = ropes(&weights, options.context);
        tracing::info!(kernels = kernels.name, threads, "the CPU engine is open");
        let slots = (0..options.max_slots).map(|_| None).collect();
        let pool = ThreadPool::new(threads).map_err(|error| EngineError::OutOfMemory(format!("{threads} threads: {error}")))?;
        let progress = pool.progress();
        let whole = if options.draft_head { with_draft_head(&weights)? } else { None };
        let mut forward = Forward::new(kernels, weights, (ropes, links), (&options.cut, sizes), pool)?;
        if let Some(whole) = whole {
            info.kv_block_bytes = info.kv_block_bytes.saturating_add(draft_head::block_bytes(&whole.spec, options.block_size));
            info.weight_bytes = info.weight_bytes.saturating_add(draft_head::head_bytes(&whole)[0]);
            let sizes = (options.context, options.num_blocks);
            let head = DraftHead::new(kernels, whole, sizes, (&limits, forward.spec()), info.step_bytes)?;
            info.draft_head = Some(head.info());
            forward.set_draft_head(head);
        }
        let entry = CacheEntry::new(BackendKind::Cpu, 0, info.kv_block_bytes.saturating_mul(limits.num_backed as u64));
        let is_loaded = vec![false; options.max_adapters];
        Ok(Self { entry, forward, source, progress, limits, info, slots, is_loaded, steps: 0, ready: None, unsampled: None })
    }

    /// The recurrent state of a state slot in one layer. Its length is the layer's state width.
    pub fn state(&mut self, state_slot: u32, layer: usize) -> &mut [f32] {
        self.forward.state(state_slot, layer)
    }

    /// The batch's inputs, with each sampled id of a slot replaced by its token.
    fn resolve(&self, batch: &Batch) -> Result<Vec<Input>, EngineError> {
        let resolve = |input: &Input| match *input {
            Input::Sampled(slot) => self.slots.get(slot as usize)?.as_ref()?.last.map(Input::Token),
            known => Some(known),
        };
        let inputs: Option<Vec<Input>> = batch.inputs.iter().map(resolve).collect();
        inputs.ok_or_else(|| EngineError::InvalidBatch("a row's token is unknown: its sequence slot has not sampled".into()))
    }

    /// Checks that the places of adapters are not empty.
    fn check_adapters(&self, batch: &Batch) -> Result<(), EngineError> {
        match batch.adapters.iter().flat_map(|of| of.iter()).find(|of| !self.is_loaded[of.place as usize]) {
            Some(of) => Err(EngineError::InvalidBatch(format!("no adapter was loaded to place {}", of.place))),
            None => Ok(()),
        }
    }

    /// Checks that every sequence that needs a sequence slot has an initialised one.
    fn check_slots(&self, batch: &Batch) -> Result<(), EngineError> {
        let vectors = batch.vectors.iter().enumerate().filter(|(_, vector)| vector.is_some()).map(|(i, _)| i);
        let is_ready = |i: usize| self.slots[batch.sequence_slots[i] as usize].is_some();
        match batch.sampled_seqs().chain(vectors).find(|&i| !is_ready(i)) {
            Some(i) => Err(EngineError::InvalidBatch(format!("sequence slot {} was not initialised", batch.sequence_slots[i]))),
            None => Ok(()),
        }
    }

    /// Checks that the step can keep the states after which drafts follow. An engine that keeps none does not go back.
    fn check_drafts(&self, batch: &Batch) -> Result<(), EngineError> {
        let sampled: Vec<usize> = batch.sampled_seqs().collect();
        let (due, most) = (sampled.windows(2).filter(|pair| pair[0] == pair[1]).count(), self.info.draft_states);
        match most > 0 && due > most {
            true => Err(EngineError::InvalidBatch(format!("{due} drafts of sequences with states, expected at most {most}"))),
            false => Ok(()),
        }
    }

    /// Completes the step whose forward pass ran last. `inputs` are its resolved inputs.
    fn finish(&mut self, batch: &Batch, inputs: &[Input], masks: &Masks) -> StepOutput {
        let mut out = StepOutput::default();
        if batch.want_draft_logits
            && let Some((head, mut run)) = self.forward.draft_head()
        {
            let logits = head.logits(&mut run, &batch.sampled_rows);
            out.draft_logits = (0..batch.num_sampled()).map(|row| logits.row(row).to_vec()).collect();
        }
        self.sample_rows(batch, inputs, masks, &mut out);
        self.forward.go_back(batch, &out.sampled);
        self.pool(batch, &mut out);
        self.score(batch, &mut out);
        out
    }
}

impl Engine for CpuEngine {
    fn spec(&self) -> &ModelSpec {
        self.forward.spec()
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.limits.kv.clone()
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

    fn num_backed_blocks(&self) -> usize {
        self.limits.num_backed
    }

    /// Succeeds at no cost, because the system makes pages resident only when they are touched.
    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        let (backed, most) = (self.limits.num_backed, self.limits.kv.num_blocks);
        let num_blocks = grown_blocks(backed, num_blocks.min(most), most).max(1);
        if num_blocks < backed {
            self.forward.give_back_from(num_blocks);
        }
        self.limits.num_backed = num_blocks;
        self.entry.set(self.info.kv_block_bytes.saturating_mul(num_blocks as u64));
        Ok(num_blocks)
    }

    fn portable_cache(&self) -> Option<PortableCache> {
        Some(cache_parts::form(&self.forward, &self.limits.kv, &self.info))
    }

    fn export(&self, part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
        cache_parts::export(&self.forward, part, out)
    }

    fn import(&mut self, part: CachePart, bytes: &[u8]) -> Result<(), EngineError> {
        cache_parts::import(&mut self.forward, part, bytes)
    }

    fn max_adapters(&self) -> usize {
        self.limits.max_adapters
    }

    fn load_adapter(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        self.unload_adapter(place);
        let Some(is_loaded) = self.is_loaded.get_mut(place as usize) else {
            let places = self.limits.max_adapters;
            return Err(EngineError::Unsupported(format!("place {place} for an adapter: there are {places}")));
        };
        self.forward.load_adapter(place as usize, adapter)?;
        *is_loaded = true;
        Ok(())
    }

    fn unload_adapter(&mut self, place: u32) {
        self.forward.unload_adapter(place as usize);
        if let Some(is_loaded) = self.is_loaded.get_mut(place as usize) {
            *is_loaded = false;
        }
    }

    fn progress(&self) -> Option<Progress> {
        Some(self.progress.clone())
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        if self.ready.is_some() || self.unsampled.is_some() {
            return Err(EngineError::InvalidBatch("the previous step was not collected".into()));
        }
        let batch = self.limits.check(batch)?;
        for init in &batch.init {
            let sampler = SamplingState::new(init.params.clone(), &init.prompt, &init.generated);
            self.slots[init.slot as usize] = Some(SequenceSlot { sampler, last: None, sum: Vec::new() });
        }
        self.check_adapters(&batch)?;
        self.check_slots(&batch)?;
        self.check_drafts(&batch)?;
        let inputs = self.resolve(&batch)?;
        self.forward.run(batch, &inputs, self.limits.max_slots);
        self.steps += 1;
        let step = StepId(self.steps);
        if batch.sample_later {
            self.unsampled = Some((step, Batch { inputs, ..Batch::clone(&batch) }));
        } else {
            self.ready = Some((step, self.finish(&batch, &inputs, &Masks::default())));
        }
        Ok(step)
    }

    fn draft(&mut self, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        if self.ready.is_some() || self.unsampled.is_some() {
            return Err(EngineError::InvalidBatch("drafts while a step is in flight".into()));
        }
        match self.forward.draft_head() {
            Some((head, mut run)) => head.draft(&mut run, requests),
            None => Err(EngineError::Unsupported("drafts of an engine without a draft head".into())),
        }
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let Some((_, batch)) = self.unsampled.take_if(|(id, _)| *id == step) else {
            return Err(EngineError::InvalidBatch(format!("step {} does not wait to be sampled", step.0)));
        };
        self.limits.check_masks(masks, batch.num_sampled())?;
        self.ready = Some((step, self.finish(&batch, &batch.inputs, masks)));
        Ok(())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        self.source.check().map_err(EngineError::of_weights)?;
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

/// The model with its draft head. None if its file has none.
///
/// # Errors
/// [`EngineError::DraftHead`] names what is wrong with the head.
pub fn with_draft_head(weights: &Weights) -> Result<Option<Weights>, EngineError> {
    weights.with_draft_head().map_err(|error| EngineError::DraftHead(error.fault.to_string()))
}

/// The number of physical cores. A core's second hyper-thread adds nothing to kernels that fill its vector units.
pub fn physical_cores() -> usize {
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
