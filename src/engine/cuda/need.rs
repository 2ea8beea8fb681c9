//! Computes whether a model fits on the device, and how large its KV cache may be.

use super::describe::Description;
use crate::pool_blocks::{least_blocks, pool_blocks};
use crate::{CacheGroup, DeviceMemory, EngineError, EngineOptions};
use model::Weights;

/// The device memory that a model needs, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    pub weights: u64,
    /// The part of the weights that a decode step of one row reads.
    pub step_weights: u64,
    /// Activations, the sampler's state, workspaces, buffers for loading, and graphs: an upper estimate.
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

    /// The largest size of the KV cache. If `kv_tokens` is set, as many blocks as it asks for. Otherwise as many as the memory fraction
    /// leaves after everything that is not cache, from one context up to one context per slot. `caches` is the memory that other models'
    /// caches hold and would give back, in bytes.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] with both figures if weights, scratch memory and the smallest cache need more than is free, or if the
    /// cache of one context would never fit.
    pub fn pool(&self, groups: &[CacheGroup], memory: DeviceMemory, caches: u64, options: &EngineOptions) -> Result<Pool, EngineError> {
        let one = pool_blocks(groups, &EngineOptions { kv_tokens: 0, ..options.clone() }) as u64;
        let asked = pool_blocks(groups, options) as u64;
        let (fixed, most_free) = (self.weights + self.scratch + self.state, memory.free + caches);
        let least = least_blocks(groups, asked as usize, options);
        for (blocks, free) in [(asked, most_free), (least as u64, memory.free)] {
            let pool = blocks.saturating_mul(self.kv_block);
            if fixed.saturating_add(pool) > free {
                return Err(EngineError::OutOfMemory(format!(
                    "the model needs {} (weights {}, {} blocks of KV cache {}, scratch {}) and {} of the device's {} are free",
                    gib(fixed.saturating_add(pool)),
                    gib(self.weights),
                    blocks,
                    gib(pool),
                    gib(self.scratch),
                    gib(free),
                    gib(memory.total),
                )));
            }
        }
        if options.kv_tokens > 0 {
            let reserve = Reserve { free_blocks: asked as usize, bytes: 0 };
            return Ok(Pool { num_blocks: asked as usize, least_blocks: least, reserve });
        }
        let in_use = memory.total - most_free.min(memory.total);
        let allowed = (memory.total as f64 * options.gpu_memory_fraction) as u64;
        let left = allowed.saturating_sub(in_use + fixed) / self.kv_block.max(1);
        // a token's place in the cache is a 32-bit number
        let most = (one * options.max_slots.max(1) as u64).min(u64::from(i32::MAX as u32) / options.block_size as u64);
        let reserve = Reserve { free_blocks: one as usize, bytes: memory.total - allowed.min(memory.total) };
        Ok(Pool { num_blocks: left.min(most).max(one) as usize, least_blocks: least, reserve })
    }
}

/// The blocks of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The most blocks.
    pub num_blocks: usize,
    /// The blocks that have memory from the start.
    pub least_blocks: usize,
    pub reserve: Reserve,
}

/// The memory that a cache leaves free when it grows: everything beyond the memory fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// A cache of up to this many blocks (one context) need not respect the reserve.
    free_blocks: usize,
    bytes: u64,
}

impl Reserve {
    /// Whether a cache may grow to `num_blocks` blocks, of which `added` are new.
    pub fn permits(&self, (num_blocks, added): (usize, usize), block_bytes: u64, memory: DeviceMemory) -> bool {
        let needed = block_bytes.saturating_mul(added as u64);
        num_blocks <= self.free_blocks || needed.saturating_add(self.bytes) <= memory.free
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
    fn the_cache_may_take_what_the_memory_fraction_leaves() {
        let need = Need { weights: 10 * GIB, step_weights: 0, scratch: GIB, kv_block: 4 << 20, state: 0 };
        let memory = DeviceMemory { free: 78 * GIB, total: 80 * GIB, held: 0 };
        let most = |need: Need, memory, caches, kv_tokens| {
            need.pool(&[CacheGroup::default()], memory, caches, &options(kv_tokens)).unwrap().num_blocks
        };
        // 0.9 · 80 − 2 in use − 11 = 59 GiB hold 15104 blocks, more than 64 contexts of 128 blocks
        assert_eq!(most(need, memory, 0, 0), 64 * 128);
        let large = Need { kv_block: 16 << 20, ..need };
        assert_eq!(most(large, memory, 0, 0), 59 * 64);
        assert_eq!(most(large, memory, 0, 5000), 157);
        // one context is allowed beyond the fraction
        let tight = DeviceMemory { free: 13 * GIB + GIB / 2, ..memory };
        assert_eq!(most(large, tight, 0, 0), 128);
        // memory of other caches comes back
        let shared = DeviceMemory { free: 20 * GIB, ..memory };
        assert_eq!(most(large, shared, 58 * GIB, 0), 59 * 64, "the same, whatever they hold now");
    }

    #[test]
    fn a_cache_has_memory_for_short_sequences_from_the_start() {
        let need = Need { weights: 10 * GIB, step_weights: 0, scratch: GIB, kv_block: 16 << 20, state: 0 };
        let memory = DeviceMemory { free: 20 * GIB, total: 80 * GIB, held: 0 };
        let long = EngineOptions { context: 131_072, ..options(0) };
        let pool = need.pool(&[CacheGroup::default()], memory, 58 * GIB, &long).unwrap();
        assert_eq!((pool.num_blocks, pool.least_blocks), (4096, 128), "59 GiB do not hold the context of 64, which is asked for");
        let permits = |num_blocks, free| pool.reserve.permits((num_blocks, 64), 16 << 20, DeviceMemory { free, ..memory });
        assert!(permits(4096, 0), "one context is allowed past the fraction");
        assert!(permits(4097, 9 * GIB) && !permits(4097, 9 * GIB - 1), "8 GiB stay free");
        let error = need.pool(&[CacheGroup::default()], memory, 40 * GIB, &long).unwrap_err().to_string();
        assert!(error.contains("4096 blocks") && error.contains("60.00 GiB of the device's"), "{error}");
        let full = DeviceMemory { free: 12 * GIB, ..memory };
        assert!(need.pool(&[CacheGroup::default()], full, 70 * GIB, &long).unwrap_err().to_string().contains("128 blocks"));
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_both_figures() {
        let need = Need { weights: 15 * GIB, step_weights: 0, scratch: GIB, kv_block: 4 << 20, state: 0 };
        let memory = DeviceMemory { free: 16 * GIB, total: 24 * GIB, held: 0 };
        for (kv_tokens, asked) in [(0, "16.50 GiB"), (8192, "17.00 GiB")] {
            let error = need.pool(&[CacheGroup::default()], memory, 0, &options(kv_tokens)).unwrap_err();
            assert!(matches!(error, EngineError::OutOfMemory(_)));
            let text = error.to_string();
            assert!(text.contains(&format!("needs {asked}")) && text.contains("16.00 GiB of the device's 24.00 GiB are free"), "{text}");
        }
    }
}
