//! Computes the device memory that a model takes, before the model is loaded.

use super::device::{Budget, Device, DeviceInfo};
use super::pool_blocks::{least_blocks, pool_blocks};
use super::{BACKENDS, BackendKind, CacheType, DeviceMemory, EngineError, EngineOptions};
use model::{LayerSpec, RopeScaling, Weights};

/// The memory that a model needs on a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub backend: BackendKind,
    pub device: String,
    pub weights: u64,
    /// How keys and values are stored.
    pub cache_type: CacheType,
    /// The KV cache and the recurrent state that the options ask for. If `kv_tokens` is 0, the cache of one context.
    pub kv: u64,
    /// Activations, logits and sampling state: an upper estimate.
    pub scratch: u64,
    /// The device's memory. None if the system does not report it.
    pub memory: Option<DeviceMemory>,
}

impl Footprint {
    fn new(backend: BackendKind, info: DeviceInfo, budget: Budget, options: &EngineOptions) -> Self {
        let blocks = pool_blocks(&budget.groups, options) as u64;
        let kv = budget.kv_block.saturating_mul(blocks).saturating_add(budget.state);
        let cache_type = options.cache_type.unwrap_or_default();
        Self { backend, device: info.name, weights: budget.weights, cache_type, kv, scratch: budget.scratch, memory: info.memory }
    }

    /// Adds what is loaded with the model: a picture encoder or a draft model. `bytes`: its memory on a device of a backend.
    #[must_use]
    pub fn with(mut self, bytes: impl Fn(BackendKind) -> u64) -> Self {
        self.weights = self.weights.saturating_add(bytes(self.backend));
        self
    }

    pub fn needed(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }

    /// Whether the model fits. None if the device's memory is not known.
    pub fn fits(&self) -> Option<bool> {
        self.memory.map(|memory| self.needed() <= memory.free)
    }
}

/// The footprint of a model on every device of this build's backends that has the cache's type, the CPU first.
pub fn footprints(weights: &Weights, options: &EngineOptions) -> Result<Vec<Footprint>, EngineError> {
    let mut all = Vec::new();
    for backend in BACKENDS.iter().rev() {
        // a backend without a driver has no devices
        for index in 0..(backend.count)().unwrap_or(0) {
            let Ok(device) = (backend.discover)(index) else { break };
            if device.cache_type(options).is_err() {
                continue;
            }
            let (info, options) = (device.describe()?, device.fill(&weights.spec, options)?);
            let budget = device.budget(weights, &options)?;
            all.push(Footprint::new(backend.kind, info, budget, &options));
        }
    }
    Ok(all)
}

/// The bytes that must be free on a device to open a model there: its weights, scratch memory, states, and the smallest cache.
///
/// # Errors
/// If the device cannot tell the model's budget.
pub fn least_bytes(device: &dyn Device, weights: &Weights, options: &EngineOptions) -> Result<u64, EngineError> {
    let options = device.fill(&weights.spec, options)?;
    let Budget { weights, kv_block, groups, state, scratch } = device.budget(weights, &options)?;
    let blocks = least_blocks(&groups, pool_blocks(&groups, &options), &options) as u64;
    Ok([scratch, state, kv_block.saturating_mul(blocks)].into_iter().fold(weights, u64::saturating_add))
}

/// The context, in tokens, that every model trained for at least as much gets, whatever the memory.
const LEAST_CONTEXT: usize = 4096;
/// Contexts that are limited by memory are multiples of this many tokens, so that people can read them.
const CONTEXT_STEP: usize = 1024;

/// The context to serve if no option sets the length: as long as the model was trained for and the device's memory holds. A model with
/// LongRoPE would compute short texts differently for the sake of long ones. Such a model stays within the context of its first training.
///
/// `options.context` is ignored. If `options.kv_tokens` is set, the cache has that size, so the memory does not matter.
///
/// `beside`: the memory that the model's picture encoder takes on the device [bytes].
///
/// # Errors
/// If the device cannot tell the model's budget.
pub fn longest_context(device: &dyn Device, weights: &Weights, options: &EngineOptions, beside: u64) -> Result<usize, EngineError> {
    let most = trained_context(weights);
    if options.kv_tokens > 0 {
        return Ok(most.min(options.kv_tokens.next_multiple_of(options.block_size.max(1))));
    }
    let memory = device.describe()?.memory;
    let options = device.fill(&weights.spec, &EngineOptions { context: most, ..options.clone() })?;
    let budget = device.budget(weights, &options)?;
    let Some(memory) = memory else { return Ok(most.min(LEAST_CONTEXT)) };
    // Counts the memory of current caches as free, so that the context's length does not depend on when the model is loaded.
    let most_free = memory.free.saturating_add(device.cache_bytes());
    let fixed = [budget.weights, budget.scratch, budget.state, beside].into_iter().fold(0, u64::saturating_add);
    let free = most_free.saturating_sub(fixed);
    Ok(context_within((free as f64 * device.cache_share(&options)) as u64, &budget, &options))
}

/// The longest context that uses the rotation factors for short texts.
fn trained_context(weights: &Weights) -> usize {
    let of = |layer: &LayerSpec| match layer.attention()?.rope?.scaling {
        RopeScaling::Long { original_context, .. } => Some(original_context),
        _ => None,
    };
    let spec = &weights.spec;
    spec.layers.iter().filter_map(of).fold(spec.context_length, usize::min)
}

/// The longest context whose KV blocks fit into `bytes`, between [`LEAST_CONTEXT`] and the options' context.
fn context_within(bytes: u64, budget: &Budget, options: &EngineOptions) -> usize {
    let most = options.context;
    let fits = |context: usize| {
        let blocks = pool_blocks(&budget.groups, &EngineOptions { context, ..options.clone() }) as u64;
        blocks.saturating_mul(budget.kv_block) <= bytes
    };
    if fits(most) {
        return most;
    }
    // The need never falls as the context grows, so bisection finds the longest context.
    let (mut steps, mut too_many) = (0, most.div_ceil(CONTEXT_STEP));
    while too_many - steps > 1 {
        let middle = steps.midpoint(too_many);
        if fits(middle * CONTEXT_STEP) { steps = middle } else { too_many = middle }
    }
    (steps * CONTEXT_STEP).max(LEAST_CONTEXT).min(most)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::CacheGroup;
    use gguf::GgufFile;
    use model::ARCHS;
    use model::testing::TinyModel;

    #[test]
    fn an_automatic_context_is_what_memory_holds_and_training_allows() {
        let budget = |kv_block| Budget { weights: 0, kv_block, groups: vec![CacheGroup::default()], state: 0, scratch: 0 };
        let options = |context| EngineOptions { context, ..EngineOptions::default() };
        let within = |bytes, most| context_within(bytes, &budget(1000), &options(most));
        assert_eq!(within(1 << 30, 8192), 8192, "all of it");
        assert_eq!(within(1_000_000, 131_072), 31 * 1024, "1000 blocks hold 32000 tokens");
        assert_eq!(within(5000, 131_072), LEAST_CONTEXT, "not less, even if memory is short");
        assert_eq!((within(0, 512), within(1 << 40, 512)), (512, 512), "a model made for less");
        assert_eq!(context_within(u64::MAX, &budget(0), &options(4096)), 4096, "a model without attention");
    }

    #[test]
    fn an_automatic_context_does_not_change_how_short_texts_are_computed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let longest = |arch, kv_tokens| {
            TinyModel::new(arch).build().write(&path).unwrap();
            let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
            let options = EngineOptions { kv_tokens, ..EngineOptions::default() };
            let device = crate::device(BackendKind::Cpu, 0).unwrap();
            (longest_context(&*device, &weights, &options, 0).unwrap(), weights.spec.context_length)
        };
        let (context, most) = longest(&ARCHS[0], 0);
        assert_eq!(context, most);
        assert_eq!(longest(&ARCHS[0], 40).0, most.min(64), "a cache of that size holds no more");
        let phi = ARCHS.iter().find(|arch| arch.name == "phi3").unwrap();
        let (context, most) = longest(phi, 0);
        assert!(context < most, "{context} of {most}: the factors of short texts");
    }

    #[test]
    fn the_cpu_footprint_matches_what_its_engine_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel::new(&ARCHS[0]).build().write(&path).unwrap();
        let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
        let spec = weights.spec.clone();
        let options = EngineOptions { threads: 1, context: 100, max_slots: 1, max_batch_tokens: 1, ..EngineOptions::default() };
        let one = footprints(&weights, &options).unwrap().swap_remove(0);
        // two float32 per token, layer, head and padded element, in four blocks of 32 tokens
        let attention = spec.attention().unwrap();
        let dim = attention.head_dim.next_multiple_of(16);
        assert_eq!(one.kv, (2 * 4 * 128 * spec.num_layers() * attention.num_kv_heads * dim) as u64);
        let more = footprints(&weights, &EngineOptions { kv_tokens: 400, ..options.clone() }).unwrap().swap_remove(0);
        assert_eq!((more.kv, more.weights), (one.kv / 4 * 13, one.weights));
        let engine = crate::open(weights, &options, Some(BackendKind::Cpu)).unwrap();
        assert_eq!(engine.info().weight_bytes, one.weights);
        assert_eq!(one.needed(), one.weights + one.kv + one.scratch);
        let memory = DeviceMemory { free: one.needed(), total: u64::MAX, held: 0 };
        assert_eq!(Footprint { memory: Some(memory), ..one.clone() }.fits(), Some(true));
        assert_eq!(Footprint { memory: Some(DeviceMemory { free: one.needed() - 1, ..memory }), ..one.clone() }.fits(), Some(false));
        assert_eq!(Footprint { memory: None, ..one }.fits(), None);
    }
}
