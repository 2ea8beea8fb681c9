//! The paged KV cache's bookkeeping: who holds which block, and which may be taken.
//!
//! Invariant: a block is in exactly one place: held (references > 0), free (no references, no content), or cached and
//! unreferenced (in the prefix cache's list). Blocks may be released while a step that reads or writes them is in flight, since the
//! engine runs its steps in order: whoever gets a block next writes to it in a later step.

use super::prefix::{ContentId, PrefixCache, ROOT};
use crate::engine::KvCapacity;

#[derive(Debug)]
pub struct BlockManager {
    capacity: KvCapacity,
    references: Vec<u32>, // [num_blocks]
    free: Vec<u32>,
    prefix: Option<PrefixCache>,
    num_releases: u64,
}

impl BlockManager {
    pub fn new(capacity: KvCapacity, prefix_cache: bool) -> Self {
        Self {
            capacity,
            references: vec![0; capacity.num_blocks],
            free: (0..capacity.num_blocks as u32).rev().collect(),
            prefix: prefix_cache.then(|| PrefixCache::new(capacity.num_blocks, capacity.block_size)),
            num_releases: 0,
        }
    }

    pub fn block_size(&self) -> usize {
        self.capacity.block_size
    }

    /// Tokens that the whole pool holds.
    pub fn num_tokens(&self) -> usize {
        self.capacity.num_blocks * self.capacity.block_size
    }

    /// Blocks that can be had: free ones and cached ones that nobody holds.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.prefix.as_ref().map_or(0, PrefixCache::num_unreferenced)
    }

    /// Share of the pool that is held, in 0..=1.
    pub fn usage(&self) -> f64 {
        match self.capacity.num_blocks {
            0 => 0.0,
            total => 1.0 - self.num_available() as f64 / total as f64,
        }
    }

    /// Grows with every release: a hint that a failed admission is worth another try.
    pub fn num_releases(&self) -> u64 {
        self.num_releases
    }

    /// A block of one's own; cached content goes last, the least recently used first.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop().or_else(|| self.prefix.as_mut().and_then(PrefixCache::evict))?;
        debug_assert_eq!(self.references[block as usize], 0);
        self.references[block as usize] = 1;
        Some(block)
    }

    /// One more reference to a block that is held.
    pub fn share(&mut self, block: u32) {
        debug_assert!(self.references[block as usize] > 0, "block {block} is shared and held by nobody");
        self.references[block as usize] += 1;
    }

    /// Gives up one reference. A sequence releases its blocks from last to first, so that a prefix outlives what follows it.
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

    /// The cached block that holds `tokens` (one block's worth) after `parent`; it gets a reference.
    pub fn acquire_cached(&mut self, salt: u64, parent: ContentId, tokens: &[u32]) -> Option<(u32, ContentId)> {
        let prefix = self.prefix.as_mut()?;
        let (block, id) = prefix.find(salt, parent, tokens)?;
        if self.references[block as usize] == 0 {
            prefix.take_unreferenced(block);
        }
        self.references[block as usize] += 1;
        Some((block, id))
    }

    /// Notes that a held block is full of `tokens` whose K and V were computed; the content's id.
    pub fn register(&mut self, block: u32, salt: u64, parent: ContentId, tokens: &[u32]) -> ContentId {
        debug_assert!(self.references[block as usize] > 0, "block {block} is registered by nobody");
        self.prefix.as_mut().map_or(ROOT, |prefix| prefix.insert(block, salt, parent, tokens))
    }

    pub fn caches_prefixes(&self) -> bool {
        self.prefix.is_some()
    }

    /// Panics unless the invariant holds and the references are exactly those of `tables`.
    #[cfg(test)]
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
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
        assert!(places.iter().all(|&n| n == 1), "a block is in no place or in two: {places:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(num_blocks: usize) -> BlockManager {
        BlockManager::new(KvCapacity { num_blocks, block_size: 2 }, true)
    }

    #[test]
    fn a_prefix_is_found_only_whole_and_under_its_salt() {
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
        blocks.check([&[a, b][..], &[a, b]].into_iter());
    }

    #[test]
    fn eviction_takes_the_least_recently_used_and_never_a_held_block() {
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
        blocks.check([&held[..]].into_iter());
    }

    #[test]
    fn the_same_content_twice_is_cached_once() {
        let mut blocks = manager(2);
        let (a, b) = (blocks.allocate().unwrap(), blocks.allocate().unwrap());
        assert_eq!(blocks.register(a, 0, ROOT, &[1, 2]), blocks.register(b, 0, ROOT, &[1, 2]));
        blocks.release(b);
        blocks.release(a);
        blocks.check(std::iter::empty());
        assert_eq!(blocks.acquire_cached(0, ROOT, &[1, 2]).map(|(block, _)| block), Some(a));
    }
}
