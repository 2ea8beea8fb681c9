//! What a model would take of one device, computed before it is loaded.

use super::device::Device;
use super::pool_blocks::{least_blocks, pool_blocks};
use super::{BackendKind, DeviceMemory, EngineError, EngineOptions};
use model::Weights;

/// What a model needs of a device, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The device's name.
    pub device: String,
    pub weights: u64,
    /// The recurrent state and the KV cache: on the CPU all that the options ask for (if `kv_tokens` is 0, the cache of one context), on a
    /// GPU what it begins with.
    pub cache: u64,
    /// Activations, logits, sampling state: an estimate from above.
    pub scratch: u64,
    /// The device's memory now; `None` if the system does not report it.
    pub memory: Option<DeviceMemory>,
}

impl Need {
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }
}

/// What a model with these options needs of a device.
///
/// # Errors
/// The device does not tell what the model would take of it.
pub fn need(device: &dyn Device, weights: &Weights, options: &EngineOptions) -> Result<Need, EngineError> {
    let info = device.describe()?;
    let options = options.filled_for(&weights.spec, device.default_load(), info.memory);
    let budget = device.budget(weights, &options)?;
    let mut blocks = pool_blocks(&budget.groups, &options);
    // A GPU's cache begins small, and grows as far as other models leave it memory. The system's memory is promised as a whole, since pages
    // are taken as they are touched.
    if device.place().0 != BackendKind::Cpu {
        blocks = least_blocks(&budget.groups, blocks, &options);
    }
    let cache = budget.kv_block.saturating_mul(blocks as u64).saturating_add(budget.state);
    Ok(Need { device: info.name, weights: budget.weights, cache, scratch: budget.scratch, memory: info.memory })
}
