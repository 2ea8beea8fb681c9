//! Computes the memory that a model would take on one device, before the model is loaded.

use super::device::Device;
use super::pool_blocks::{least_blocks, pool_blocks};
use super::{BackendKind, DeviceMemory, EngineError, EngineOptions};
use model::Weights;

/// The memory that a model needs on a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The device's name.
    pub device: String,
    pub weights: u64,
    /// The recurrent state and the KV cache. On the CPU, the whole cache that the options ask for (if `kv_tokens` is 0, the cache of one
    /// context). On a GPU, the cache that the model starts with.
    pub cache: u64,
    /// Activations, logits and sampling state: an upper estimate.
    pub scratch: u64,
    /// The device's memory now. None if the system does not report it.
    pub memory: Option<DeviceMemory>,
}

impl Need {
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }
}

/// The memory that a model with these options needs on a device.
///
/// # Errors
/// If the device cannot tell the model's budget.
pub fn need(device: &dyn Device, weights: &Weights, options: &EngineOptions) -> Result<Need, EngineError> {
    let info = device.describe()?;
    let options = device.fill(&weights.spec, options)?;
    let budget = device.budget(weights, &options)?;
    let mut blocks = pool_blocks(&budget.groups, &options);
    // A GPU's cache starts small and grows as far as other models leave memory. On the CPU the whole cache counts, because its pages take
    // memory only as they are touched.
    if device.place().0 != BackendKind::Cpu {
        blocks = least_blocks(&budget.groups, blocks, &options);
    }
    let cache = budget.kv_block.saturating_mul(blocks as u64).saturating_add(budget.state);
    Ok(Need { device: info.name, weights: budget.weights, cache, scratch: budget.scratch, memory: info.memory })
}
