//! The CUDA backend: kernels and device memory through the C interface of `cuda/include/penstock.h`. Up to two steps are in flight.

#![allow(unsafe_code, reason = "the backend calls the C interface")]

mod adapters;
mod batch;
mod classifier;
mod describe;
mod encoder;
mod encoder_describe;
mod groups;
mod kernels;
mod load;
mod lower;
mod need;
mod raii;
mod results;
mod slots;
mod sys;

use std::collections::VecDeque;
use std::time::Instant;

use super::check::Limits;
use super::device::{Budget, Device, DeviceInfo};
use super::memory_ledger::{CacheEntry, cache_bytes};
use super::pool_blocks::grown_blocks;
use super::program::{Program, Scope};
use super::rope::ropes;
use super::{
    Adapter, BackendKind, Batch, CacheType, DefaultLoad, DeviceMemory, Encoder, Engine, EngineError, EngineInfo, EngineOptions, Input,
    KernelsOn, KvCapacity, LoopLimits, LoopTimes, Masks, Resident, StepId, StepOutput, StepSize,
};
use adapters::AdapterSites;
use batch::FlatBatch;
use classifier::Classifier;
use describe::Description;
pub use encoder::CudaEncoder;
use groups::groups;
use load::CopyPlan;
use lower::DeviceProgram;
use model::{ModelSpec, Pooling, VisionWeights, Weights};
use need::{Need, Reserve};
use raii::{Context, KernelDevice, Runner};
use results::{ResultLayout, Results};
use slots::DeviceSlots;

const MAX_IN_FLIGHT: usize = 2;
const DEFAULT_LOAD: DefaultLoad = DefaultLoad { max_slots: 256, max_batch_tokens: 2048 };

/// The time that a model may spend on capturing graphs while it is loaded, not counting graphs of decode steps over the shortest contexts.
/// Steps without a graph are slower.
const CAPTURE_SECONDS: f64 = 2.0;

/// A GPU that this program can use.
pub struct Gpu {
    index: u32,
    context: Context,
}

impl Device for Gpu {
    fn count() -> Result<u32, EngineError> {
        raii::device_count()
    }

    fn discover(index: u32) -> Result<Self, EngineError> {
        let count = raii::device_count()?;
        if index >= count {
            return Err(EngineError::Unsupported(format!("CUDA device {index} does not exist: the last one is {}", count - 1)));
        }
        raii::verify()?;
        Ok(Self { index, context: Context::create(index)? })
    }

    /// Ends the process at once. A normal exit would run CUDA's exit handlers. They wait for a device that may no longer answer, and they
    /// take the runtime away from threads that still load or free a model.
    fn end_process(code: i32) -> ! {
        // SAFETY: takes a number and does not return.
        unsafe { libc::_exit(code) }
    }

    fn list_program(weights: &Weights, context: usize, scope: &Scope) -> Result<String, EngineError> {
        let (_, links) = ropes(weights, context);
        Ok(DeviceProgram::new(weights, &Program::new(weights, &links, scope)?)?.listing())
    }

    fn list_kernels(weights: &Weights, on: &KernelsOn, size: StepSize) -> Result<String, EngineError> {
        let list = |device: &KernelDevice| kernels::list(weights, device, size, DEFAULT_LOAD);
        match on {
            KernelsOn::Device(index) => list(&KernelDevice::Present(&Self::discover(*index)?.context)),
            KernelsOn::Arch(arch) => list(&KernelDevice::named(arch)?),
        }
    }

    fn place(&self) -> (BackendKind, u32) {
        (BackendKind::Cuda, self.index)
    }

    fn describe(&self) -> Result<DeviceInfo, EngineError> {
        let (memory, name) = self.context.memory()?;
        Ok(DeviceInfo { name: format!("GPU {} ({name})", self.index), memory: Some(memory) })
    }

    /// Smaller batches would leave a GPU idle.
    fn default_load(&self) -> DefaultLoad {
        DEFAULT_LOAD
    }

    fn cache_types(&self) -> &'static [CacheType] {
        &[CacheType::F16]
    }

    fn cache_share(&self, options: &EngineOptions) -> f64 {
        options.gpu_memory_fraction
    }

    fn cache_bytes(&self) -> u64 {
        cache_bytes(BackendKind::Cuda, self.index)
    }

    fn budget(&self, weights: &Weights, options: &EngineOptions) -> Result<Budget, EngineError> {
        let need = Need::of(weights, options)?;
        let groups = groups(&weights.spec);
        Ok(Budget { weights: need.weights, kv_block: need.kv_block, groups, state: need.state, scratch: need.scratch })
    }

    /// Copies a model's weights to the device. Their file may be unmapped afterwards. A model that does not fit is refused before anything
    /// is allocated.
    fn open(self: Box<Self>, weights: Weights, options: &EngineOptions) -> Result<Box<dyn Engine>, EngineError> {
        Ok(Box::new(CudaEngine::new(self.context, self.index, weights, options)?))
    }
}

/// Opens a picture encoder on the GPU of this index.
///
/// # Errors
/// As [`CudaEncoder::new`].
pub fn open_encoder(vision: &VisionWeights, index: u32, most_patches: usize) -> Result<Box<dyn Encoder>, EngineError> {
    Ok(Box::new(CudaEncoder::new(Context::create(index)?, vision, most_patches)?))
}

/// The state of a sequence slot after the batches so far.
#[derive(Clone, Copy, PartialEq)]
enum SlotState {
    Unused,
    Ready,
    Sampled,
}

struct InFlight {
    step: u64,
    asked: ResultLayout,
    /// The steps of a loop that are not collected. 0 for one step.
    num_left: u32,
}

struct CudaEngine {
    runner: Runner,
    spec: ModelSpec,
    limits: Limits,
    info: EngineInfo,
    entry: CacheEntry,
    reserve: Reserve,
    slots: Vec<SlotState>,
    classifier: Option<Classifier>,
    adapter_sites: AdapterSites,
    /// Whether the engine's layers are the last ones.
    has_head: bool,
    in_flight: VecDeque<InFlight>,
    /// Whether the loops in flight are to end early, which the device has not been told.
    ends_loops: bool,
    device_slots: DeviceSlots,
    // buffers that are reused from step to step
    flat: FlatBatch,
    results: Results,
}

/// The time of a row of a decode step, in units of the step's time without rows: eight rows of an 8B model take 1.18 times one row's time.
const ROW_COST: f64 = 0.03;

impl CudaEngine {
    fn new(context: Context, index: u32, weights: Weights, options: &EngineOptions) -> Result<Self, EngineError> {
        if options.block_size == 0 || !options.block_size.is_multiple_of(32) {
            return Err(EngineError::Unsupported(format!("a KV block of {} tokens: the GPU takes multiples of 32", options.block_size)));
        }
        let spec = weights.spec.clone();
        let need = Need::of(&weights, options)?;
        let (memory, device) = context.memory()?;
        let pool = need.pool(&groups(&spec), memory, cache_bytes(BackendKind::Cuda, index), options)?;
        let num_blocks = pool.num_blocks;
        let description = Description::new(&weights, options)?;
        let has_head = description.program().output.is_none();
        let adapter_sites = AdapterSites::of(description.program(), &weights);
        let mut model = description.begin(context)?;
        let load_bandwidth = Some(CopyPlan::new(description.program()).copy(&model, &weights)?);
        model.finish()?;
        let mut init = sys::pen_kv_init {
            num_blocks: num_blocks as u32,
            block_size: options.block_size as u32,
            backed: pool.least_blocks as u32,
            captured: 0,
            wanted: 0,
            capture_seconds: CAPTURE_SECONDS,
            resident: encode_resident(options.resident),
            loop_turn: 0,
            loops: 0,
            loops_wanted: 0,
            step_seconds: 0.0,
            loop_seconds: 0.0,
        };
        let begin = Instant::now();
        let runner = Runner::new(model, &mut init)?;
        let (num_backed, seconds) = (init.backed as usize, begin.elapsed().as_secs_f64());
        tracing::info!("captured {} of {} graphs of steps, the last after {seconds:.2} s", init.captured, init.wanted);
        let loops = loop_limits(&init);
        tell_loops(options.resident, &init);
        tracing::info!(device, most_kv_tokens = num_blocks * options.block_size, "the CUDA engine is open");
        let limits = Limits {
            kv: KvCapacity {
                num_blocks,
                block_size: options.block_size,
                groups: groups(&spec),
                num_state_slots: if spec.is_recurrent() { options.state_slots } else { 0 },
                cache_type: CacheType::F16,
            },
            num_backed,
            vocab_size: spec.vocab_size,
            embedding_width: spec.embedding_width(),
            num_token_types: spec.num_token_types,
            max_slots: options.max_slots,
            max_batch_tokens: options.max_batch_tokens,
            max_context: (options.context.div_ceil(options.block_size) * options.block_size)
                .min(spec.max_positions().unwrap_or(usize::MAX)),
            bidirectional: spec.arch.bidirectional,
            loops,
            refuses_grids: spec.rope_sections.is_none().then_some("the model rotates by one"),
            refuses_rows: None,
            max_adapters: options.max_adapters.min(sys::PEN_MAX_ADAPTERS as usize),
        };
        let device_slots = DeviceSlots::new(&limits.kv, options.max_slots, has_head, spec.rope_sections.is_some());
        Ok(Self {
            runner,
            spec,
            reserve: pool.reserve,
            entry: CacheEntry::new(BackendKind::Cuda, index, need.kv_block * num_backed as u64),
            info: EngineInfo {
                backend: BackendKind::Cuda,
                device,
                index,
                kv_block_bytes: need.kv_block,
                weight_bytes: need.weights,
                step_bytes: need.step_weights,
                load_bandwidth,
                max_batch_tokens: options.max_batch_tokens,
                row_cost: ROW_COST,
                draft_states: 0,
                draft_head: None,
                loop_times: loop_times(&init),
            },
            slots: vec![SlotState::Unused; options.max_slots],
            device_slots,
            has_head,
            limits,
            classifier: Classifier::load(&weights),
            adapter_sites,
            in_flight: VecDeque::new(),
            ends_loops: false,
            flat: FlatBatch::default(),
            results: Results::default(),
        })
    }

    /// Tracks the slots through a batch. A row may read a slot's sampled id only after the slot has sampled.
    fn follow(&mut self, batch: &Batch) -> Result<(), EngineError> {
        for init in &batch.init {
            self.slots[init.slot as usize] = SlotState::Ready;
        }
        let from_nothing = |input: &Input| matches!(*input, Input::Sampled(slot) if self.slots[slot as usize] != SlotState::Sampled);
        if batch.inputs.iter().any(from_nothing) {
            return Err(EngineError::InvalidBatch("a row's token is unknown: its slot has not sampled".into()));
        }
        for seq in batch.sampled_seqs() {
            match &mut self.slots[batch.sequence_slots[seq] as usize] {
                SlotState::Unused => return Err(EngineError::InvalidBatch("a slot was not initialised".into())),
                state => *state = SlotState::Sampled,
            }
        }
        Ok(())
    }
}

fn encode_resident(resident: Resident) -> u32 {
    match resident {
        Resident::Off => sys::PEN_RESIDENT_OFF,
        Resident::Auto => sys::PEN_RESIDENT_AUTO,
        Resident::On => sys::PEN_RESIDENT_ON,
    }
}

/// The most sequences of a loop: the most rows of a step that is a graph.
const MOST_LOOP_SEQS: usize = 256;

fn loop_limits(init: &sys::pen_kv_init) -> Option<LoopLimits> {
    let turn = init.loop_turn as usize;
    (turn > 0).then_some(LoopLimits { most_steps: sys::PEN_MAX_LOOP_STEPS as usize, turn, most_seqs: MOST_LOOP_SEQS })
}

fn loop_times(init: &sys::pen_kv_init) -> Option<LoopTimes> {
    let &sys::pen_kv_init { loop_turn, step_seconds, loop_seconds, .. } = init;
    (loop_seconds > 0.0).then_some(LoopTimes { turn: loop_turn as usize, from_host: step_seconds, in_loop: loop_seconds })
}

/// Logs whether decode steps run in loops, and the measurement that decided it.
fn tell_loops(resident: Resident, init: &sys::pen_kv_init) {
    if resident == Resident::Off {
        return;
    }
    let Some(LoopTimes { turn, from_host, in_loop }) = loop_times(init) else {
        tracing::info!("decode steps start from the host: the device has no loops for this model");
        return;
    };
    let (from_host, in_loop) = (from_host * 1e6, in_loop * 1e6);
    let measured = format!("a step takes {from_host:.1} µs from the host and {in_loop:.1} µs in a loop");
    match turn {
        0 => tracing::info!("decode steps start from the host: {measured}"),
        _ => tracing::info!(
            "decode steps run in loops on the device, which may end after every {turn} steps: {measured}; captured {} of {} loops",
            init.loops,
            init.loops_wanted
        ),
    }
}

impl Engine for CudaEngine {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn kv_capacity(&self) -> KvCapacity {
        self.limits.kv.clone()
    }

    fn max_slots(&self) -> usize {
        self.limits.max_slots
    }

    fn max_in_flight(&self) -> usize {
        MAX_IN_FLIGHT
    }

    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    fn num_backed_blocks(&self) -> usize {
        self.limits.num_backed
    }

    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        let (backed, most) = (self.limits.num_backed, self.limits.kv.num_blocks);
        let wanted = num_blocks.min(most);
        if wanted < backed && !self.in_flight.is_empty() {
            return Err(EngineError::InvalidBatch("a step in flight may use the blocks that would lose their memory".into()));
        }
        let grown = grown_blocks(backed, wanted, most);
        if wanted > backed && !self.reserve.permits((wanted, wanted - backed), self.info.kv_block_bytes, self.runner.context().memory()?.0)
        {
            return Ok(backed);
        }
        let begin = Instant::now();
        let resized = match self.runner.resize(grown) {
            Err(EngineError::OutOfMemory(_)) if grown > wanted => self.runner.resize(wanted),
            other => other,
        };
        match resized {
            Ok(num_backed) => self.limits.num_backed = num_backed,
            Err(EngineError::OutOfMemory(why)) => tracing::debug!("the KV cache does not grow: {why}"),
            Err(error) => return Err(error),
        }
        tracing::debug!("the KV cache went from {backed} to {} blocks in {:.2?}", self.limits.num_backed, begin.elapsed());
        self.entry.set(self.info.kv_block_bytes * self.limits.num_backed as u64);
        Ok(self.limits.num_backed)
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.runner.context().memory().ok().map(|(memory, _)| memory)
    }

    fn copy_bandwidth(&mut self) -> Option<f64> {
        self.runner.context().copy_bandwidth().ok().filter(|bandwidth| self.in_flight.is_empty() && *bandwidth > 0.0)
    }

    fn max_adapters(&self) -> usize {
        self.limits.max_adapters
    }

    fn load_adapter(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        let runner = &mut self.runner;
        let loaded = self.adapter_sites.lend(adapter, |changes| runner.load_adapter(place, changes)).flatten();
        loaded.inspect_err(|_| self.unload_adapter(place))
    }

    fn unload_adapter(&mut self, place: u32) {
        let runner = &mut self.runner;
        if let Err(error) = adapters::lend_none(|none| runner.load_adapter(place, none)) {
            tracing::warn!("an adapter cannot be unloaded: {error}");
        }
    }

    fn loop_limits(&self) -> Option<LoopLimits> {
        self.limits.loops
    }

    fn is_shared(&self) -> bool {
        encoder::is_at_work()
    }

    fn end_loops(&mut self) {
        self.ends_loops = true;
    }

    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            return Err(EngineError::InvalidBatch(format!("{MAX_IN_FLIGHT} steps are in flight")));
        }
        let checked = self.limits.check(batch)?;
        self.follow(batch)?;
        let runner = &mut self.runner;
        let changes = self.device_slots.follow(checked);
        let submitted = self.flat.lend(checked, &self.limits, changes, |lent| runner.submit(lent)).flatten();
        let step = submitted.inspect_err(|_| self.device_slots.forget())?;
        self.in_flight.push_back(InFlight { step, asked: ResultLayout::by(batch, self.has_head), num_left: batch.loop_steps });
        Ok(StepId(step))
    }

    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        let Some(flight) = self.in_flight.back().filter(|flight| flight.step == step.0) else {
            return Err(EngineError::InvalidBatch(format!("step {} was not submitted last", step.0)));
        };
        self.limits.check_masks(masks, flight.asked.num_sampled())?;
        let runner = &mut self.runner;
        let sampled = self.flat.lend_masks(masks, self.spec.vocab_size, |lent| runner.sample(step.0, lent));
        sampled.inspect_err(|_| self.device_slots.forget())
    }

    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        let vocab = self.spec.vocab_size;
        let Some(mut flight) = self.in_flight.pop_front_if(|flight| flight.step == step.0) else {
            return Err(EngineError::InvalidBatch(format!("step {} is not the next in flight", step.0)));
        };
        self.results.resize(&flight.asked, vocab, self.spec.hidden_dim);
        // SAFETY: resized above, by the layout of the batch that was submitted as this step.
        let collected = unsafe { self.runner.collect(step.0, std::mem::take(&mut self.ends_loops), &mut self.results) };
        out.goes_on = collected.inspect_err(|_| self.device_slots.forget())?;
        self.results.read(&flight.asked, vocab, out)?;
        if flight.num_left > 0 {
            flight.num_left -= u32::from(!out.sampled.is_empty());
            if out.goes_on {
                self.in_flight.push_front(flight);
            } else if flight.num_left > 0 {
                // Rows have not moved on as far as they would have.
                self.device_slots.forget();
            }
            return Ok(());
        }
        if let Some(classifier) = self.classifier.as_ref().filter(|_| self.spec.pooling == Pooling::Rank) {
            out.vectors.iter_mut().filter(|row| !row.is_empty()).for_each(|row| *row = classifier.scores(row));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
