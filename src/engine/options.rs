//! What an engine is opened with.

use model::ModelSpec;

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// CPU threads. 0: one per physical core.
    pub threads: usize,
    /// Index of the GPU.
    pub device: u32,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Tokens in the KV pool, at least one context. 0: one context on the CPU; on a GPU, what its memory holds.
    pub kv_tokens: usize,
    /// The share of the GPU's whole memory that may be in use after the KV pool is allocated.
    pub gpu_memory_fraction: f64,
    /// Tokens per KV block: a multiple of 32.
    pub block_size: usize,
    /// The most sequences that a batch may have. 0: the device's default.
    pub max_slots: usize,
    /// The most rows that a batch may have. 0: the device's default, but at least one per engine slot.
    pub max_batch_tokens: usize,
    /// State slots for models with recurrent state. 0: two per engine slot, so that every sequence can keep a copy.
    pub state_slots: usize,
}

impl Default for EngineOptions {
    /// Sequences of 4096 tokens; everything else is the engine's choice.
    fn default() -> Self {
        Self {
            threads: 0,
            device: 0,
            context: 4096,
            kv_tokens: 0,
            gpu_memory_fraction: 0.9,
            block_size: 32,
            max_slots: 0,
            max_batch_tokens: 0,
            state_slots: 0,
        }
    }
}

/// The batch that a kind of device is good at: its defaults for `max_slots` and `max_batch_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultLoad {
    pub max_slots: usize,
    pub max_batch_tokens: usize,
}

impl EngineOptions {
    /// Replaces zeros by a device's defaults. A model whose rows see later rows gets a batch that holds its longest sequence.
    pub(crate) fn filled_for(&self, spec: &ModelSpec, load: DefaultLoad) -> Self {
        let filled = self.filled(load);
        let least = if spec.arch.bidirectional { filled.context } else { 0 };
        Self { max_batch_tokens: filled.max_batch_tokens.max(least), ..filled }
    }

    /// Replaces zeros by a device's defaults.
    fn filled(&self, load: DefaultLoad) -> Self {
        let max_slots = if self.max_slots == 0 { load.max_slots } else { self.max_slots };
        let max_batch_tokens = if self.max_batch_tokens == 0 { load.max_batch_tokens.max(max_slots) } else { self.max_batch_tokens };
        let state_slots = if self.state_slots == 0 { 2 * max_slots } else { self.state_slots };
        Self { max_slots, max_batch_tokens, state_slots, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_stands_for_the_devices_default() {
        let small = DefaultLoad { max_slots: 32, max_batch_tokens: 512 };
        let filled = |max_slots, max_batch_tokens| {
            let options = EngineOptions { max_slots, max_batch_tokens, ..EngineOptions::default() }.filled(small);
            (options.max_slots, options.max_batch_tokens, options.state_slots)
        };
        assert_eq!(filled(0, 0), (32, 512, 64));
        assert_eq!(filled(7, 9), (7, 9, 14));
        assert_eq!(filled(0, 100), (32, 100, 64));
        assert_eq!(filled(1000, 0), (1000, 1000, 2000), "every sequence needs room for a row");
        let options = EngineOptions { state_slots: 3, ..EngineOptions::default() };
        assert_eq!(options.filled(small).state_slots, 3);
    }
}
