//! What an engine and its device tell about themselves.

use std::fmt;

use model::{TensorSlot, Weight, Weights};

/// A way to compute. [`crate::BACKENDS`] lists those of this build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    #[default]
    Cpu,
    Cuda,
}

impl BackendKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    /// The name as a sentence has it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Cpu => "the CPU",
            Self::Cuda => "CUDA",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an engine can hold between steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvCapacity {
    /// KV blocks in the pool.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// State slots. 0: the model has no recurrent state.
    pub num_state_slots: usize,
}

impl KvCapacity {
    /// A capacity for models without recurrent state.
    pub const fn blocks(num_blocks: usize, block_size: usize) -> Self {
        Self { num_blocks, block_size, num_state_slots: 0 }
    }

    /// Whether the model keeps recurrent state, so that each sequence needs a state slot.
    pub const fn has_state(&self) -> bool {
        self.num_state_slots > 0
    }
}

/// What an engine is and holds, for those who measure it.
#[derive(Clone, Debug, Default)]
pub struct EngineInfo {
    pub backend: BackendKind,
    pub device: String,
    /// Bytes of all weights in the memory that they are computed from.
    pub weight_bytes: u64,
    /// The part of `weight_bytes` that a decode step reads.
    pub step_bytes: u64,
    /// Bytes of the file per second while the weights were copied to the device. None: they were not copied.
    pub load_bandwidth: Option<f64>,
    /// The most rows that a batch may have.
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

/// Bytes of all weights, and of those that a decode step of one sequence reads. Such a step reads one row of a token embedding that has
/// a head beside it, one row of learned positions, and the experts that it uses.
pub(crate) fn weight_bytes(weights: &Weights, size: impl Fn(&Weight) -> u64) -> (u64, u64) {
    let tied = has_tied_head(weights);
    let experts = weights.spec.experts().copied().unwrap_or_default();
    let (mut all, mut step) = (0, 0);
    // a tied head stands in the table twice
    for ((slot, _), weight) in weights.by_slot.iter().filter(|((slot, _), _)| !(tied && *slot == TensorSlot::Output)) {
        let bytes = size(weight);
        all += bytes;
        step += match slot {
            TensorSlot::TokenEmbd if !tied => 0,
            TensorSlot::PerLayerTokenEmbd => 0,
            TensorSlot::PositionEmbd => 0,
            slot if slot.is_routed() => bytes / experts.count as u64 * experts.used as u64,
            _ => bytes,
        };
    }
    (all, step)
}

/// Whether the token embedding is the head, too.
pub(crate) fn has_tied_head(weights: &Weights) -> bool {
    let tensor = |slot| weights.get(slot, 0).map(|weight| weight.tensor);
    tensor(TensorSlot::Output) == tensor(TensorSlot::TokenEmbd)
}
