//! What a model takes of a device's memory, computed before it is loaded.

use super::device::{Budget, DeviceInfo};
use super::{BACKENDS, BackendKind, DeviceMemory, EngineError, EngineOptions};
use model::Weights;

/// What a model needs of a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub backend: BackendKind,
    pub device: String,
    pub weights: u64,
    /// The KV cache and the recurrent state that the options ask for; if `kv_tokens` is 0, the cache of one context.
    pub kv: u64,
    /// Activations, logits, sampling state: an estimate from above.
    pub scratch: u64,
    /// The device's memory; `None` if the system does not report it.
    pub memory: Option<DeviceMemory>,
}

impl Footprint {
    fn new(backend: BackendKind, info: DeviceInfo, budget: Budget, options: &EngineOptions) -> Self {
        let tokens = if options.kv_tokens == 0 { options.context } else { options.kv_tokens };
        let blocks = tokens.div_ceil(options.block_size.max(1)) as u64;
        let kv = budget.kv_block.saturating_mul(blocks).saturating_add(budget.state);
        Self { backend, device: info.name, weights: budget.weights, kv, scratch: budget.scratch, memory: info.memory }
    }

    pub fn needed(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }

    /// Whether the model fits; `None` if the device's memory is not known.
    pub fn fits(&self) -> Option<bool> {
        self.memory.map(|memory| self.needed() <= memory.free)
    }
}

/// What a model needs on every device of this build's backends, the CPU first.
pub fn footprints(weights: &Weights, options: &EngineOptions) -> Result<Vec<Footprint>, EngineError> {
    let mut all = Vec::new();
    for backend in BACKENDS.iter().rev() {
        // no driver, no devices
        for index in 0..(backend.count)().unwrap_or(0) {
            let Ok(device) = (backend.discover)(index) else { break };
            let options = options.filled_for(&weights.spec, device.default_load());
            let budget = device.budget(weights, &options)?;
            all.push(Footprint::new(backend.kind, device.describe()?, budget, &options));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use gguf::GgufFile;
    use model::ARCHS;
    use model::testing::TinyModel;

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
