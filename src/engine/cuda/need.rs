//! Whether a model fits, and how large its KV cache may be.

use super::describe::Description;
use crate::pool_blocks::pool_blocks;
use crate::{CacheGroup, DeviceMemory, EngineError, EngineOptions};
use model::Weights;

/// Device memory that a model asks for, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub weights: u64,
    /// The part of the weights that a decode step of one row reads.
    pub step_weights: u64,
    /// Activations, the sampler's state, workspaces, buffers for loading, graphs: an estimate from above.
    pub scratch: u64,
    /// One KV block in all layers.
    pub kv_block: u64,
    /// The recurrent states of all slots.
    pub state: u64,
}

impl Need {
    pub fn of(weights: &Weights, options: &EngineOptions) -> Result<Self, EngineError> {
        let need = Description::new(weights, options)?.need()?;
        let kv_block = need.kv_token * options.block_size as u64;
        Ok(Self { weights: need.weights, step_weights: need.step_weights, scratch: need.scratch, kv_block, state: need.state })
    }

    /// KV blocks to allocate: as many as `kv_tokens` asks for; if that is 0, as many as the memory fraction leaves, from one context up
    /// to one context per slot.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] with both figures if weights, scratch memory and cache need more than is free.
    pub fn kv_blocks(&self, groups: &[CacheGroup], memory: DeviceMemory, options: &EngineOptions) -> Result<usize, EngineError> {
        let one = pool_blocks(groups, &EngineOptions { kv_tokens: 0, ..options.clone() }) as u64;
        let least = pool_blocks(groups, options) as u64;
        let (fixed, pool) = (self.weights + self.scratch + self.state, least * self.kv_block);
        if fixed + pool > memory.free {
            return Err(EngineError::OutOfMemory(format!(
                "the model needs {} (weights {}, {} blocks of KV cache {}, scratch {}) and {} of the device's {} are free",
                gib(fixed + pool),
                gib(self.weights),
                least,
                gib(pool),
                gib(self.scratch),
                gib(memory.free),
                gib(memory.total),
            )));
        }
        if options.kv_tokens > 0 {
            return Ok(least as usize);
        }
        let in_use = memory.total - memory.free.min(memory.total);
        let allowed = (memory.total as f64 * options.gpu_memory_fraction) as u64;
        let left = allowed.saturating_sub(in_use + fixed) / self.kv_block.max(1);
        // a token's place in the cache is a 32-bit number
        let most = (one * options.max_slots.max(1) as u64).min(u64::from(i32::MAX as u32) / options.block_size as u64);
        Ok(left.min(most).max(one) as usize)
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn options(kv_tokens: usize) -> EngineOptions {
        EngineOptions { kv_tokens, max_slots: 64, max_batch_tokens: 2048, ..EngineOptions::default() }
    }

    #[test]
    fn the_cache_takes_what_the_memory_fraction_leaves() {
        let need = Need { weights: 10 * GIB, step_weights: 0, scratch: GIB, kv_block: 4 << 20, state: 0 };
        let memory = DeviceMemory { free: 78 * GIB, total: 80 * GIB, held: 0 };
        // 0.9 · 80 − 2 in use − 11 = 59 GiB are 15104 blocks, more than 64 contexts of 128
        assert_eq!(need.kv_blocks(&[CacheGroup::default()], memory, &options(0)).unwrap(), 64 * 128);
        let large = Need { kv_block: 16 << 20, ..need };
        assert_eq!(large.kv_blocks(&[CacheGroup::default()], memory, &options(0)).unwrap(), 59 * 64);
        assert_eq!(large.kv_blocks(&[CacheGroup::default()], memory, &options(5000)).unwrap(), 157);
        // one context is allowed past the fraction
        let tight = DeviceMemory { free: 13 * GIB + GIB / 2, ..memory };
        assert_eq!(large.kv_blocks(&[CacheGroup::default()], tight, &options(0)).unwrap(), 128);
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_both_figures() {
        let need = Need { weights: 15 * GIB, step_weights: 0, scratch: GIB, kv_block: 4 << 20, state: 0 };
        let memory = DeviceMemory { free: 16 * GIB, total: 24 * GIB, held: 0 };
        for (kv_tokens, asked) in [(0, "16.50 GiB"), (8192, "17.00 GiB")] {
            let error = need.kv_blocks(&[CacheGroup::default()], memory, &options(kv_tokens)).unwrap_err();
            assert!(matches!(error, EngineError::OutOfMemory(_)));
            let text = error.to_string();
            assert!(text.contains(&format!("needs {asked}")) && text.contains("16.00 GiB of the device's 24.00 GiB are free"), "{text}");
        }
    }
}
