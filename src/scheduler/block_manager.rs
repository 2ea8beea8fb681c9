//! The books of the engine's memory: which KV blocks and state slots are held, and which are available.
//!
//! Invariant: a block is either held (references > 0), or free (no references, no content), or cached and unreferenced (in the prefix
//! cache's list). A state slot is either held by one sequence or free. Blocks and state slots may be released while a step that reads or
//! writes them is in flight: the engine runs its steps in order, so their next holder writes to them in a later step.
//!
//! A cached prefix is useful only if the sequence can go on from its end. A model with recurrent state needs the state at that position
//! for this, and no snapshots of states are kept. So such a model has no prefix cache.

use crate::prefix::{ContentId, PrefixCache, ROOT};
use engine::KvCapacity;

#[derive(Debug)]
pub struct BlockManager {
    capacity: KvCapacity,
    references: Vec<u32>, // [num_blocks]
    free: Vec<u32>,
    free_state_slots: Vec<u32>,
    prefix: Option<PrefixCache>,
    num_releases: u64,
}

impl BlockManager {
    pub fn new(capacity: KvCapacity, prefix_cache: bool) -> Self {
        Self {
            capacity,
            references: vec![0; capacity.num_blocks],
            free: (0..capacity.num_blocks as u32).rev().collect(),
            free_state_slots: (0..capacity.num_state_slots as u32).rev().collect(),
            prefix: (prefix_cache && !capacity.has_state()).then(|| PrefixCache::new(capacity.num_blocks, capacity.block_size)),
            num_releases: 0,
        }
    }

    pub fn block_size(&self) -> usize {
        self.capacity.block_size
    }

    pub fn num_blocks(&self) -> usize {
        self.capacity.num_blocks
    }

    /// Tokens that all blocks together hold.
    pub fn num_tokens(&self) -> usize {
        self.capacity.num_blocks * self.capacity.block_size
    }

    /// Blocks that can be allocated: free ones, and cached ones that no sequence holds.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.prefix.as_ref().map_or(0, PrefixCache::num_unreferenced)
    }

    /// Share of the blocks that are held, in 0..=1.
    pub fn usage(&self) -> f64 {
        match self.capacity.num_blocks {
            0 => 0.0,
            total => 1.0 - self.num_available() as f64 / total as f64,
        }
    }

    /// Grows with every release. A failed admission is worth another try once it has grown.
    pub fn num_releases(&self) -> u64 {
        self.num_releases
    }

    /// What a failed admission took and gave back since the count was `num_releases` is no release: it makes no other admission possible.
    pub fn forget_releases_since(&mut self, num_releases: u64) {
        self.num_releases = num_releases;
    }

    /// Allocates a block for one sequence. If none is free, evicts the least recently used cached block.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| self.prefix.as_mut().and_then(PrefixCache::evict))?;
        debug_assert_eq!(self.references[block as usize], 0);
        self.references[block as usize] = 1;
        Some(block)
    }

    /// Adds a reference to a held block.
    pub fn share(&mut self, block: u32) {
        debug_assert!(self.references[block as usize] > 0, "block {block} is shared but nobody holds it");
        self.references[block as usize] += 1;
    }

    /// Drops a reference. A sequence releases its blocks from last to first, so that a prefix outlives what follows it.
    pub fn release(&mut self, block: u32) {
        let count = &mut self.references[block as usize];
        debug_assert!(*count > 0, "block {block} is released twice");
        *count -= 1;
        self.num_releases += 1;
        if *count == 0 {
            match &mut self.prefix {
                Some(prefix) if prefix.is_cached(block) => prefix.push_unreferenced(block),
                _ => self.free.push(block),
            }
        }
    }

    /// Adds a reference to the cached block that holds `tokens` (one block's worth) after `parent`, if there is one.
    pub fn acquire_cached(&mut self, salt: u64, parent: ContentId, tokens: &[u32]) -> Option<(u32, ContentId)> {
        let prefix = self.prefix.as_mut()?;
        let (block, id) = prefix.find(salt, parent, tokens)?;
        if self.references[block as usize] == 0 {
            prefix.take_unreferenced(block);
        }
        self.references[block as usize] += 1;
        Some((block, id))
    }

    /// Adds a held block to the prefix cache. The block must hold the K and V of `tokens`. Returns the content's id.
    pub fn register(&mut self, block: u32, salt: u64, parent: ContentId, tokens: &[u32]) -> ContentId {
        debug_assert!(self.references[block as usize] > 0, "block {block} is registered but nobody holds it");
        self.prefix.as_mut().map_or(ROOT, |prefix| prefix.insert(block, salt, parent, tokens))
    }

    pub fn caches_prefixes(&self) -> bool {
        self.prefix.is_some()
    }

    /// Whether the model has recurrent state, so that every running sequence holds a state slot.
    pub fn has_state(&self) -> bool {
        self.capacity.has_state()
    }

    pub fn allocate_state_slot(&mut self) -> Option<u32> {
        self.free_state_slots.pop()
    }

    pub fn release_state_slot(&mut self, slot: u32) {
        debug_assert!(!self.free_state_slots.contains(&slot), "state slot {slot} is released twice");
        self.free_state_slots.push(slot);
        self.num_releases += 1;
    }

    /// Panics unless each state slot is either in `held` or free.
    #[cfg(test)]
    pub fn check_state_slots(&self, held: impl Iterator<Item = u32>) {
        let mut slots: Vec<u32> = held.chain(self.free_state_slots.iter().copied()).collect();
        slots.sort_unstable();
        assert!(slots.iter().copied().eq(0..self.capacity.num_state_slots as u32), "state slots: {slots:?}");
    }

    /// Panics unless the invariant holds and the references are exactly those of `tables`.
    #[cfg(test)]
    pub fn check_blocks<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
        let mut held = vec![0u32; self.capacity.num_blocks];
        tables.flatten().for_each(|&block| held[block as usize] += 1);
        assert_eq!(held, self.references, "references");
        let mut places: Vec<u32> = held.iter().map(|&n| u32::from(n > 0)).collect();
        self.free.iter().for_each(|&block| places[block as usize] += 1);
        let unreferenced = self.prefix.as_ref().map(PrefixCache::unreferenced).unwrap_or_default();
        assert_eq!(unreferenced.len(), self.num_available() - self.free.len());
        for &block in &unreferenced {
            places[block as usize] += 1;
            assert!(self.prefix.as_ref().is_some_and(|p| p.is_cached(block)));
        }
        for &block in &self.free {
            assert!(!self.prefix.as_ref().is_some_and(|p| p.is_cached(block)), "free block {block} is cached");
        }
        assert!(places.iter().all(|&n| n == 1), "each block is held, free or cached: {places:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(num_blocks: usize) -> BlockManager {
        BlockManager::new(KvCapacity::blocks(num_blocks, 2), true)
    }

    #[test]
    fn a_prefix_is_found_only_if_salt_and_every_token_match() {
        let mut blocks = manager(4);
        let (a, b) = (blocks.allocate().unwrap(), blocks.allocate().unwrap());
        let first = blocks.register(a, 7, ROOT, &[1, 2]);
        let second = blocks.register(b, 7, first, &[3, 4]);
        assert_ne!(first, second);
        assert_eq!(blocks.acquire_cached(7, ROOT, &[1, 2]), Some((a, first)));
        assert_eq!(blocks.acquire_cached(7, first, &[3, 4]), Some((b, second)));
        assert_eq!(blocks.acquire_cached(8, ROOT, &[1, 2]), None, "another salt");
        assert_eq!(blocks.acquire_cached(7, ROOT, &[3, 4]), None, "another prefix");
        assert_eq!(blocks.acquire_cached(7, first, &[3, 5]), None);
        blocks.check_blocks([&[a, b][..], &[a, b]].into_iter());
    }

    #[test]
    fn eviction_takes_the_least_recently_used_block_and_never_a_held_one() {
        let mut blocks = manager(3);
        let held: Vec<u32> = (0..3).map(|_| blocks.allocate().unwrap()).collect();
        assert_eq!(blocks.allocate(), None);
        for (i, &block) in held.iter().enumerate() {
            blocks.register(block, 0, ROOT, &[i as u32, 0]);
        }
        held.iter().for_each(|&block| blocks.release(block));
        assert_eq!((blocks.num_available(), blocks.usage()), (3, 0.0));
        let (again, _) = blocks.acquire_cached(0, ROOT, &[0, 0]).unwrap();
        assert_eq!(again, held[0]);
        assert_eq!(blocks.allocate(), Some(held[1]));
        assert_eq!(blocks.acquire_cached(0, ROOT, &[1, 0]), None, "evicted");
        assert_eq!(blocks.allocate(), Some(held[2]));
        assert_eq!(blocks.allocate(), None);
        blocks.check_blocks([&held[..]].into_iter());
    }

    #[test]
    fn equal_content_is_cached_once() {
        let mut blocks = manager(2);
        let (a, b) = (blocks.allocate().unwrap(), blocks.allocate().unwrap());
        assert_eq!(blocks.register(a, 0, ROOT, &[1, 2]), blocks.register(b, 0, ROOT, &[1, 2]));
        blocks.release(b);
        blocks.release(a);
        blocks.check_blocks(std::iter::empty());
        assert_eq!(blocks.acquire_cached(0, ROOT, &[1, 2]).map(|(block, _)| block), Some(a));
    }

    #[test]
    fn a_state_slot_has_one_holder_and_is_reused_after_its_release() {
        let mut blocks = BlockManager::new(KvCapacity { num_state_slots: 2, ..KvCapacity::blocks(4, 2) }, true);
        let (a, b) = (blocks.allocate_state_slot().unwrap(), blocks.allocate_state_slot().unwrap());
        assert_ne!(a, b);
        assert_eq!(blocks.allocate_state_slot(), None);
        blocks.check_state_slots([a, b].into_iter());
        let before = blocks.num_releases();
        blocks.release_state_slot(a);
        assert!(blocks.num_releases() > before, "a waiting sequence tries again");
        blocks.check_state_slots([b].into_iter());
        assert_eq!(blocks.allocate_state_slot(), Some(a));
    }

    #[test]
    fn a_model_with_recurrent_state_has_no_prefix_cache() {
        assert!(manager(4).caches_prefixes());
        let blocks = BlockManager::new(KvCapacity { num_state_slots: 2, ..KvCapacity::blocks(4, 2) }, true);
        assert!(blocks.has_state() && !blocks.caches_prefixes());
    }
}
