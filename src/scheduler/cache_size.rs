//! The size of the KV cache: grows as blocks run out, and gives idle memory back.
//!
//! The engine reserves addresses for the largest cache and backs its first blocks with memory, in large pages. A cache that cannot grow is
//! handled like a full one: sequences wait, cached contents are evicted, and the youngest sequence is preempted. None of this changes the
//! results: they have the same bits.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::block_manager::BlockManager;
use crate::shared_device::{CacheHandle, CacheState, MemoryRequest};
use engine::{Engine, EngineError};
use metrics::{EngineGauges, ModelMetrics};

/// Time before a cache that could not grow tries again.
const RETRY: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 50 });
/// Time during which a cache that was asked for memory does not grow.
const RESTRAINT: Duration = Duration::from_secs(2);

/// The price that may be paid to give memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    Nothing,
    /// Also cached contents of prompts.
    Contents,
    /// Also the blocks of running sequences, which are preempted.
    Sequences,
}

#[derive(Debug)]
pub struct CacheSize {
    /// Number of blocks that always stay backed.
    least: usize,
    block_bytes: u64,
    /// The cache does not try to grow before this time.
    refused_until: Option<Instant>,
    /// None if no other model is on the device.
    cache_handle: Option<CacheHandle>,
}

impl CacheSize {
    pub fn new(engine: &dyn Engine) -> Self {
        let (least, block_bytes) = (engine.num_backed_blocks().max(1), engine.info().kv_block_bytes);
        Self { least, block_bytes, refused_until: None, cache_handle: None }
    }

    /// Makes the cache share its device's memory with those of other models.
    pub fn join(&mut self, cache_handle: CacheHandle) {
        self.cache_handle = Some(cache_handle);
    }

    /// Memory requests of other models to this cache.
    pub fn requests(&self) -> Receiver<MemoryRequest> {
        self.cache_handle.as_ref().map_or_else(crossbeam_channel::never, |cache_handle| cache_handle.requests().clone())
    }

    /// Size of `num_blocks` blocks [bytes].
    fn bytes(&self, num_blocks: usize) -> u64 {
        self.block_bytes.saturating_mul(num_blocks as u64)
    }

    /// Decides whether the cache may try to grow in this step.
    pub fn begin_step(&mut self, blocks: &mut BlockManager, now: Instant) {
        self.refused_until.take_if(|until| now >= *until);
        blocks.set_can_grow(self.refused_until.is_none());
    }

    /// Grows the cache until `count` blocks are free, if there is memory for that. If there is not, and evicting contents would not
    /// suffice, asks other models for memory. Returns whether the cache has grown.
    ///
    /// # Errors
    /// The device is lost.
    pub fn make_free(
        &mut self,
        engine: &mut dyn Engine,
        blocks: &mut BlockManager,
        metrics: &ModelMetrics,
        count: usize,
    ) -> Result<bool, EngineError> {
        if !blocks.can_grow() || count <= blocks.num_free() {
            return Ok(false);
        }
        let before = blocks.num_backed();
        let wanted = (before + count - blocks.num_free()).min(blocks.num_blocks());
        let bytes = self.bytes(wanted - before);
        let free = self.cache_handle.as_ref().and_then(|_| engine.memory()).map(|memory| memory.free);
        let permits = self.cache_handle.as_ref().zip(free).is_none_or(|(cache_handle, free)| cache_handle.permits(bytes, free));
        let backed = if permits { engine.resize_cache(wanted)? } else { before };
        blocks.add_backed(backed);
        if backed < wanted {
            self.refused_until = Some(Instant::now() + RETRY);
            blocks.set_can_grow(false);
            if let Some((cache_handle, free)) = self.cache_handle.as_ref().zip(free).filter(|_| count > blocks.num_available()) {
                cache_handle.ask(self.bytes(wanted - backed), free);
            }
        }
        if backed > before {
            metrics.cache_growths_total.inc();
        }
        Ok(backed > before)
    }

    /// Number of blocks that are left if the cache gives back `bytes` bytes, whether or not they are in use.
    pub fn kept_blocks(&self, blocks: &BlockManager, bytes: u64) -> usize {
        let asked = usize::try_from(bytes.div_ceil(self.block_bytes.max(1))).unwrap_or(usize::MAX);
        blocks.num_backed().saturating_sub(asked).max(self.least)
    }

    /// Gives memory back from the end of the cache, until `bytes` bytes are given back or the rest is in use. `evicts`: whether cached
    /// contents may be lost. No step may be in flight. Returns the number of bytes given back.
    ///
    /// # Errors
    /// The device is lost.
    pub fn give_back(
        &mut self,
        engine: &mut dyn Engine,
        blocks: &mut BlockManager,
        metrics: &ModelMetrics,
        (bytes, evicts): (u64, bool),
    ) -> Result<u64, EngineError> {
        let before = blocks.num_backed();
        let kept = self.kept_blocks(blocks, bytes).max(blocks.num_pinned(evicts));
        if kept >= before {
            return Ok(0);
        }
        blocks.remove_backed(kept);
        let backed = engine.resize_cache(kept)?;
        blocks.add_backed(backed);
        let given = before.saturating_sub(backed);
        if given > 0 {
            metrics.cache_give_backs_total.inc();
        }
        Ok(self.bytes(given))
    }

    /// Stops the cache from growing for a while, because another model needs memory.
    pub fn hold_back(&mut self) {
        self.refused_until = Some(Instant::now() + RESTRAINT);
    }

    /// Updates the gauges. Returns the bytes that are in use, backed, and the most that can be backed.
    pub fn show(&self, blocks: &BlockManager, gauges: &EngineGauges, is_busy: bool) -> [u64; 3] {
        let bytes = [blocks.num_held(), blocks.num_backed(), blocks.num_blocks()].map(|count| self.bytes(count));
        gauges.set(|load| load.cache_bytes = bytes);
        if let Some(cache_handle) = &self.cache_handle {
            cache_handle.set(CacheState { least: self.bytes(self.least), backed: bytes[1], most: bytes[2], is_busy });
        }
        bytes
    }
}
