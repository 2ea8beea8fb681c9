//! The memory that a loaded model takes on its device.

use engine::{DeviceMemory, Need};

/// The memory that a loaded model takes on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    pub weights: u64,
    /// The KV cache and recurrent states.
    pub cache: u64,
    pub scratch: u64,
}

impl ModelMemory {
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            cache: self.cache.saturating_add(other.cache),
            scratch: self.scratch.saturating_add(other.scratch),
        }
    }
}

impl From<&Need> for ModelMemory {
    fn from(need: &Need) -> Self {
        Self { weights: need.weights, cache: need.cache, scratch: need.scratch }
    }
}

/// The memory of a model after its load, on a device that allocates memory at once. `after`: the device's memory with the model.
pub fn measured(need: &Need, after: Option<DeviceMemory>) -> ModelMemory {
    let estimated = ModelMemory::from(need);
    let (Some(before), Some(after)) = (need.memory, after) else { return estimated };
    let taken = before.free.saturating_sub(after.free).max(estimated.total());
    // Memory beyond the estimate belongs to the cache, which takes what is left.
    ModelMemory { cache: taken - estimated.weights - estimated.scratch, ..estimated }
}
