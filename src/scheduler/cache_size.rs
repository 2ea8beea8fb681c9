//! How much memory the KV cache has: it grows as blocks run out, and gives back what is idle.
//!
//! The engine reserves addresses for the largest cache and puts memory behind its first blocks, in large pages. A cache that cannot grow
//! is like a full one: sequences wait, contents are evicted, the youngest sequence is preempted. Nothing of this changes a bit.

use std::time::{Duration, Instant};

use crate::block_manager::BlockManager;
use engine::{Engine, EngineError};
use metrics::ModelMetrics;

/// How long a cache that could not grow does not try again.
const RETRY: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct CacheSize {
    /// Blocks that always have memory.
    least: usize,
    block_bytes: u64,
    /// Until when the cache does not try to grow.
    refused_until: Option<Instant>,
}

impl CacheSize {
    pub fn new(engine: &dyn Engine) -> Self {
        Self { least: engine.num_backed_blocks().max(1), block_bytes: engine.info().kv_block_bytes, refused_until: None }
    }

    /// Bytes of so many blocks.
    pub fn bytes(&self, num_blocks: usize) -> u64 {
        self.block_bytes.saturating_mul(num_blocks as u64)
    }

    /// Whether the cache may try to grow in this step.
    pub fn begin_step(&mut self, blocks: &mut BlockManager, now: Instant) {
        self.refused_until.take_if(|until| now >= *until);
        blocks.set_can_grow(self.refused_until.is_none());
    }

    /// Grows the cache until `count` blocks are free, if there is memory for that. Returns whether it has grown.
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
        let backed = engine.resize_cache(wanted)?;
        blocks.add_backed(backed);
        if backed < wanted {
            self.refused_until = Some(Instant::now() + RETRY);
            blocks.set_can_grow(false);
        }
        if backed > before {
            metrics.cache_growths_total.inc();
        }
        Ok(backed > before)
    }

    /// Gives memory back from the end of the cache, until `bytes` bytes are given or what is left is pinned. `evicts`: cached contents go,
    /// too. No step may be in flight. Returns the bytes.
    ///
    /// # Errors
    /// The device is lost.
    pub fn give_back(
        &mut self,
        engine: &mut dyn Engine,
        blocks: &mut BlockManager,
        metrics: &ModelMetrics,
        bytes: u64,
        evicts: bool,
    ) -> Result<u64, EngineError> {
        let before = blocks.num_backed();
        let asked = usize::try_from(bytes.div_ceil(self.block_bytes.max(1))).unwrap_or(usize::MAX);
        let kept = before.saturating_sub(asked).max(self.least).max(blocks.num_pinned(evicts));
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

    /// Updates the gauges. Returns the bytes in use, with memory, and at most.
    pub fn show(&self, blocks: &BlockManager, metrics: &ModelMetrics) -> [u64; 3] {
        let bytes = [blocks.num_held(), blocks.num_backed(), blocks.num_blocks()].map(|count| self.bytes(count));
        for (kind, bytes) in ["used", "backed", "most"].into_iter().zip(bytes) {
            metrics.kv_cache_bytes.with_label_values(&[kind]).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        bytes
    }
}
