//! [`EngineOptions`]: the options that an engine is opened with.

use std::ops::Range;

use super::{CacheType, DeviceMemory};
use model::ModelSpec;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// CPU threads. 0: one per physical core.
    pub threads: usize,
    /// The index of the GPU.
    pub device: u32,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Tokens in the KV pool, at least one context. 0: one context on the CPU, and as many as the memory holds on a GPU.
    pub kv_tokens: usize,
    /// The share of the GPU's whole memory that may be in use after the KV pool is allocated.
    pub gpu_memory_fraction: f64,
    /// Tokens per KV block: a multiple of 32.
    pub block_size: usize,
    /// How keys and values are stored. None: as the device does by itself.
    pub cache_type: Option<CacheType>,
    /// The most sequences per batch. 0: the device's default.
    pub max_slots: usize,
    /// The most rows per batch. 0: the device's default, but at least one per sequence slot.
    pub max_batch_tokens: usize,
    /// State slots for models with recurrent state. 0: one per sequence slot, plus as many for checkpoints as a share of the device's
    /// memory holds.
    pub state_slots: usize,
    /// The most recurrent states that a step keeps to go back behind wrong drafts, on a backend that does. 0: such models get no drafts.
    pub draft_states: usize,
    /// Whether the model's draft head runs along, if its file has one and the backend runs draft heads.
    pub draft_head: bool,
    /// The most adapters that are loaded at once, on a backend that runs adapters.
    pub max_adapters: usize,
    /// Whether decode steps run in loops on the device.
    pub resident: Resident,
    /// The part of the model that the engine computes, and in how many shards.
    pub part: ModelPart,
    /// The engine's number among the replicas of its model, and how many there are. On the CPU, they divide threads and memory.
    pub replica: (usize, usize),
}

/// A part of a model. Parts give the bits of the whole, which tests compare: no setting chooses one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The number of shards, which run one after another on the device: 1, 2, 4 or 8.
    pub shards: usize,
    /// The layers. None: all of them. An engine whose layers are not the first ones takes rows of the residual stream as embeddings. One
    /// whose layers are not the last ones returns such rows in place of logits.
    pub layers: Option<Range<usize>>,
}

impl Default for ModelPart {
    /// The whole model.
    fn default() -> Self {
        Self { shards: 1, layers: None }
    }
}

impl Default for EngineOptions {
    /// Sequences of 4096 tokens. Everything else is left to the engine.
    fn default() -> Self {
        Self {
            threads: 0,
            device: 0,
            context: 4096,
            kv_tokens: 0,
            gpu_memory_fraction: 0.9,
            block_size: 32,
            cache_type: None,
            max_slots: 0,
            max_batch_tokens: 0,
            state_slots: 0,
            draft_states: 0,
            draft_head: false,
            max_adapters: 16,
            resident: Resident::default(),
            part: ModelPart::default(),
            replica: (0, 1),
        }
    }
}

/// Whether decode steps run in loops on the device, without waiting for the host. The results have the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resident {
    Off,
    #[default]
    /// If a step is as fast in a loop as from an idle host, by a measurement when the model is loaded.
    Auto,
    /// Wherever the device has loops.
    On,
}

/// The batch size that suits a kind of device: its defaults for `max_slots` and `max_batch_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultLoad {
    pub max_slots: usize,
    pub max_batch_tokens: usize,
}

/// The share of a device's memory that checkpoints of recurrent state may take, as a divisor.
const CHECKPOINT_SHARE: u64 = 16;
/// The most checkpoints per sequence slot, however small a state is: those of one long prompt, and one after its answer.
const MOST_CHECKPOINTS: usize = 10;

impl EngineOptions {
    /// Replaces zeros by the device's defaults. A model whose rows see later rows gets a batch that holds its longest sequence.
    pub(crate) fn filled_for(&self, spec: &ModelSpec, load: DefaultLoad, memory: Option<DeviceMemory>) -> Self {
        let filled = self.filled(load);
        let least = if spec.arch.bidirectional { filled.context } else { 0 };
        let state_slots = if self.state_slots == 0 { filled.max_slots + filled.checkpoints(spec, memory) } else { self.state_slots };
        Self { max_batch_tokens: filled.max_batch_tokens.max(least), state_slots, ..filled }
    }

    /// State slots beyond those of running sequences: as many as fit into a share of the memory. If the memory is not known, one per
    /// sequence slot.
    fn checkpoints(&self, spec: &ModelSpec, memory: Option<DeviceMemory>) -> usize {
        let Some(memory) = memory else { return self.max_slots };
        let fit = memory.total / CHECKPOINT_SHARE / spec.state_bytes().max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).min(self.max_slots.saturating_mul(MOST_CHECKPOINTS))
    }

    /// Replaces zeros by the device's defaults.
    fn filled(&self, load: DefaultLoad) -> Self {
        let max_slots = if self.max_slots == 0 { load.max_slots } else { self.max_slots };
        let max_batch_tokens = if self.max_batch_tokens == 0 { load.max_batch_tokens.max(max_slots) } else { self.max_batch_tokens };
        Self { max_slots, max_batch_tokens, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::arch::Recurrent;
    use model::testing::TinyModel;
    use model::{ARCHS, Mixer, Ssm};

    #[test]
    fn zero_stands_for_the_devices_default() {
        let small = DefaultLoad { max_slots: 32, max_batch_tokens: 512 };
        let filled = |max_slots, max_batch_tokens| {
            let options = EngineOptions { max_slots, max_batch_tokens, ..EngineOptions::default() }.filled(small);
            (options.max_slots, options.max_batch_tokens)
        };
        assert_eq!(filled(0, 0), (32, 512));
        assert_eq!(filled(7, 9), (7, 9));
        assert_eq!(filled(0, 100), (32, 100));
        assert_eq!(filled(1000, 0), (1000, 1000), "every sequence needs room for a row");
    }

    #[test]
    fn checkpoints_take_a_share_of_the_memory() {
        let load = DefaultLoad { max_slots: 4, max_batch_tokens: 512 };
        let mut spec = TinyModel::new(&ARCHS[0]).spec();
        let slots = |spec: &ModelSpec, memory: Option<u64>, state_slots| {
            let memory = memory.map(|total| DeviceMemory { free: 0, total, held: 0 });
            EngineOptions { state_slots, ..EngineOptions::default() }.filled_for(spec, load, memory).state_slots
        };
        let ssm = Ssm { kind: Recurrent::Mamba2, inner: 1000, state: 25, conv: 1, heads: 1, groups: 1, normalised: false };
        spec.layers[0].mixer = Mixer::Recurrent(ssm);
        assert_eq!(spec.state_bytes(), 100_000);
        assert_eq!(slots(&spec, Some(16 * 700_000), 0), 4 + 7);
        assert_eq!(slots(&spec, Some(1), 0), 4, "those of the sequences that run");
        assert_eq!(slots(&spec, Some(1 << 50), 0), 4 + 40);
        assert_eq!(slots(&spec, None, 0), 8);
        assert_eq!(slots(&spec, Some(1 << 50), 3), 3);
    }
}
