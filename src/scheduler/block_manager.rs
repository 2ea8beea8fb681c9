//! Tracks the engine's cache memory: which KV blocks and state slots are held, and which are available.
//!
//! Only the first blocks are backed by memory (`cache_size.rs`). Blocks with low ids are allocated first, so that the memory at the end of
//! the cache can be given back.
//!
//! Invariant: a backed block is either held (references > 0), or free (no references, no content), or cached and unreferenced (in the
//! prefix cache's list). A state slot is held by one sequence, free, or a checkpoint. Blocks and state slots may be released while a step
//! that reads or writes them is in flight: the engine runs its steps in order, so their next holder writes to them in a later step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::block_key::{BlockItems, CacheScope};
use crate::lru::Owner;
use crate::prefix_cache::{ContentId, PrefixCache, ROOT};
use crate::state_slots::StateSlots;
use crate::unsaved::{ToSave, Unsaved};
use engine::{CacheGroup, KvCapacity};
use tiers::{Identity, Root};

#[derive(Debug)]
pub struct BlockManager {
    capacity: KvCapacity,
    max_tokens: usize,
    references: Vec<u32>, // [num_blocks]
    free: BinaryHeap<Reverse<u32>>,
    /// Number of leading blocks that are backed by memory.
    num_backed: usize,
    /// Whether more blocks could be backed, as far as is known.
    can_grow: bool,
    /// The largest number of blocks that was claimed at once and not available.
    wanted: usize,
    states: StateSlots,
    prefix: Option<PrefixCache>,
    /// None if contents are not saved.
    unsaved: Option<Unsaved>,
    num_releases: u64,
}

impl BlockManager {
    /// `num_backed`: number of leading blocks that are backed by memory.
    pub fn new(capacity: KvCapacity, num_backed: usize, prefix_cache: bool) -> Self {
        let KvCapacity { num_blocks, block_size, num_state_slots, .. } = capacity;
        let num_backed = num_backed.min(num_blocks);
        Self {
            max_tokens: capacity.max_tokens(),
            references: vec![0; num_blocks],
            free: (0..num_backed as u32).map(Reverse).collect(),
            num_backed,
            can_grow: false,
            wanted: 0,
            states: StateSlots::new(num_state_slots),
            prefix: prefix_cache.then(|| PrefixCache::new(num_blocks, capacity.groups.len(), block_size)),
            unsaved: None,
            num_releases: 0,
            capacity,
        }
    }

    /// How keys and values are stored, as a part of the keys of blocks.
    pub fn format(&self) -> u64 {
        self.capacity.cache_type as u64
    }

    pub fn block_size(&self) -> usize {
        self.capacity.block_size
    }

    pub fn num_blocks(&self) -> usize {
        self.capacity.num_blocks
    }

    /// Number of leading blocks that are backed by memory.
    pub fn num_backed(&self) -> usize {
        self.num_backed
    }

    /// Number of blocks that are backed or, as far as is known, could be.
    pub fn num_reachable(&self) -> usize {
        if self.can_grow { self.capacity.num_blocks } else { self.num_backed }
    }

    /// Number of backed blocks that hold nothing.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Number of blocks that sequences hold.
    pub fn num_held(&self) -> usize {
        self.num_backed - self.num_available()
    }

    /// Sets whether more blocks could be backed. If so, growing is preferred to evicting cached contents.
    pub fn set_can_grow(&mut self, can_grow: bool) {
        let could_grow = std::mem::replace(&mut self.can_grow, can_grow && self.num_backed < self.capacity.num_blocks);
        if self.can_grow && !could_grow {
            // An admission that failed for lack of memory may succeed now.
            self.num_releases += 1;
        }
    }

    pub fn can_grow(&self) -> bool {
        self.can_grow
    }

    /// Whether `count` blocks can be allocated. While the cache can grow, cached contents must not be evicted for them. If not, the number
    /// is remembered.
    pub fn claim(&mut self, count: usize) -> bool {
        let is_there = count <= if self.can_grow { self.free.len() } else { self.num_available() };
        if !is_there {
            self.wanted = self.wanted.max(count);
        }
        is_there
    }

    /// Whether `count` blocks can be allocated, even by evicting cached contents. If not, the number is remembered.
    pub fn has(&mut self, count: usize) -> bool {
        let is_there = count <= self.num_available();
        if !is_there {
            self.wanted = self.wanted.max(count);
        }
        is_there
    }

    /// Returns the largest number of blocks that was claimed in vain since the last call, or 0.
    pub fn take_wanted(&mut self) -> usize {
        std::mem::take(&mut self.wanted)
    }

    /// Records that the first `num_backed` blocks are now backed.
    pub fn add_backed(&mut self, num_backed: usize) {
        let num_backed = num_backed.min(self.capacity.num_blocks);
        if num_backed > self.num_backed {
            self.free.extend((self.num_backed as u32..num_backed as u32).map(Reverse));
            self.num_backed = num_backed;
            self.num_releases += 1;
        }
        self.can_grow &= self.num_backed < self.capacity.num_blocks;
    }

    /// Number of leading blocks that must stay backed: all up to the last one that is held or, unless `evicts`, holds a cached content.
    pub fn num_pinned(&self, evicts: bool) -> usize {
        let is_pinned = |block: usize| {
            self.references[block] > 0 || !evicts && self.prefix.as_ref().is_some_and(|prefix| prefix.is_cached(block as u32))
        };
        (0..self.num_backed).rev().find(|&block| is_pinned(block)).map_or(0, |last| last + 1)
    }

    /// Keeps only the first `num_backed` blocks and forgets the cached contents of the others, which must not be held.
    pub fn remove_backed(&mut self, num_backed: usize) {
        for block in num_backed..self.num_backed {
            debug_assert_eq!(self.references[block], 0, "block {block} is held");
            self.forget(block as u32);
        }
        self.free.retain(|Reverse(block)| (*block as usize) < num_backed);
        self.num_backed = self.num_backed.min(num_backed);
    }

    /// Forgets the content of a block that no sequence holds. The block is in no list afterwards.
    fn forget(&mut self, block: u32) {
        let Some(prefix) = self.prefix.as_mut().filter(|prefix| prefix.is_cached(block)) else { return };
        prefix.unreferenced.take(block);
        if let Some(slot) = prefix.forget_block(block) {
            self.states.forget(slot);
        }
    }

    /// Whether the cache can hold a sequence of `num_tokens` tokens that runs `num_together` of them in one step. A group with a window
    /// then holds the blocks of all these tokens besides those of the window.
    pub fn fits(&self, num_tokens: usize, num_together: usize) -> bool {
        let block_size = self.block_size();
        let most = |group: &CacheGroup| {
            let window = group.num_blocks(num_tokens, block_size);
            num_tokens.div_ceil(block_size).min(window + num_together.div_ceil(block_size))
        };
        self.groups().iter().map(most).sum::<usize>() <= self.num_blocks()
    }

    /// The cache groups. A sequence has a block table for each.
    pub fn groups(&self) -> &[CacheGroup] {
        &self.capacity.groups
    }

    /// Length of the longest sequence that the blocks can hold [tokens].
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Number of blocks that can be allocated: free ones, and cached ones that no sequence holds.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.prefix.as_ref().map_or(0, |prefix| prefix.unreferenced.len())
    }

    /// The held share of all blocks or, if the cache cannot grow, of the backed ones [0..=1].
    pub fn usage(&self) -> f64 {
        self.num_held() as f64 / self.num_reachable().max(1) as f64
    }

    /// Counts releases. A failed admission may succeed once the count has grown.
    pub fn num_releases(&self) -> u64 {
        self.num_releases
    }

    /// Resets the release count to `num_releases` after a failed admission. Blocks that the admission itself took and gave back make no
    /// other admission possible.
    pub fn forget_releases_since(&mut self, num_releases: u64) {
        self.num_releases = num_releases;
    }

    /// Begins planning a step.
    pub fn begin_step(&mut self) {
        self.states.begin_step();
    }

    /// Allocates a block for one sequence. If none is free, evicts the least recently used cached block.
    pub fn allocate(&mut self) -> Option<u32> {
        let block = self.free.pop().map(|Reverse(block)| block).or_else(|| self.evict())?;
        debug_assert_eq!(self.references[block as usize], 0);
        self.references[block as usize] = 1;
        Some(block)
    }

    fn evict(&mut self) -> Option<u32> {
        let (block, checkpoint) = self.prefix.as_mut()?.evict()?;
        if let Some(slot) = checkpoint {
            self.states.forget(slot);
        }
        Some(block)
    }

    /// Adds a reference to a held block.
    pub fn share(&mut self, block: u32) {
        debug_assert!(self.references[block as usize] > 0, "block {block} is shared but nobody holds it");
        self.references[block as usize] += 1;
    }

    /// Drops a reference. A sequence releases its blocks from last to first, so that a prefix stays cached longer than its continuation.
    pub fn release(&mut self, block: u32) {
        let count = &mut self.references[block as usize];
        debug_assert!(*count > 0, "block {block} is released twice");
        *count -= 1;
        self.num_releases += 1;
        if *count == 0 {
            match &mut self.prefix {
                Some(prefix) if prefix.is_cached(block) => prefix.release(block),
                _ => self.free.push(Reverse(block)),
            }
        }
    }

    /// Finds the content `items` (one block) after `parent`, if that content is known.
    pub fn find(&self, scope: CacheScope, parent: ContentId, items: &BlockItems) -> Option<ContentId> {
        self.prefix.as_ref()?.find(scope, parent, items)
    }

    /// The cached block that holds a content in a group.
    pub fn cached_block(&self, content: ContentId, group: usize) -> Option<u32> {
        self.prefix.as_ref()?.block(content, group)
    }

    /// Adds a reference to a cached block.
    pub fn acquire_cached(&mut self, block: u32) {
        if self.references[block as usize] == 0
            && let Some(prefix) = &mut self.prefix
        {
            prefix.unreferenced.take(block);
        }
        self.references[block as usize] += 1;
    }

    /// Adds held blocks to the prefix cache: one per group, or None for a group whose block is not held any more. They must hold the K and
    /// V of `items`. `scope`: the scope, and the tenant whose sequence holds the blocks. Returns the content's id.
    pub fn register(
        &mut self,
        scope: (CacheScope, Owner),
        parent: ContentId,
        items: &BlockItems,
        blocks: impl Iterator<Item = Option<u32>>,
    ) -> ContentId {
        self.prefix.as_mut().map_or(ROOT, |prefix| prefix.insert(scope, parent, items, blocks))
    }

    /// Lets new contents be saved, by identities below `root`.
    pub fn save_contents(&mut self, root: Root) {
        self.unsaved = Some(Unsaved::new(root, 2 * self.capacity.num_blocks));
    }

    pub fn has_unsaved(&self) -> bool {
        self.unsaved.as_ref().is_some_and(|unsaved| !unsaved.is_empty())
    }

    /// What is to be saved next.
    pub fn pop_unsaved(&mut self) -> Option<ToSave> {
        self.unsaved.as_mut()?.pop()
    }

    /// By what files know a content. None if it is unknown or not saved.
    pub fn identity(&self, content: ContentId) -> Option<&Identity> {
        self.prefix.as_ref()?.identity(content)
    }

    /// Sets by what files know a content. `is_saved`: whether it comes from files.
    pub fn set_identity(&mut self, content: ContentId, identity: Identity, is_saved: bool) {
        let is_new = self.prefix.as_mut().is_some_and(|prefix| prefix.set_identity(content, identity));
        if let Some(unsaved) = self.unsaved.as_mut().filter(|_| is_new && !is_saved) {
            unsaved.push(ToSave::Blocks(content));
        }
    }

    /// The hash by which files know the content before a block, if the block can be saved: that of `parent`, or the root.
    pub fn saved_parent(&self, parent: ContentId) -> Option<Root> {
        let root = self.unsaved.as_ref()?.root();
        if parent == ROOT { Some(root) } else { Some(self.identity(parent)?.hash) }
    }

    /// Lets the state behind a content be saved.
    pub fn save_state(&mut self, content: ContentId) {
        let is_known = self.identity(content).is_some() && self.checkpoint(content).is_some();
        if let Some(unsaved) = self.unsaved.as_mut().filter(|_| is_known) {
            unsaved.push(ToSave::State(content));
        }
    }

    pub fn caches_prefixes(&self) -> bool {
        self.prefix.is_some()
    }

    /// Whether the model has recurrent state, so that every running sequence holds a state slot.
    pub fn has_state(&self) -> bool {
        self.capacity.has_state()
    }

    /// Whether states are kept as checkpoints, so that a sequence can continue from another one's state.
    pub fn keeps_checkpoints(&self) -> bool {
        self.has_state() && self.caches_prefixes()
    }

    /// Allocates a state slot. If none is free, evicts the least recently used checkpoint.
    pub fn allocate_state_slot(&mut self) -> Option<u32> {
        let (slot, lost) = self.states.allocate()?;
        if let (Some(content), Some(prefix)) = (lost, &mut self.prefix) {
            prefix.forget_checkpoint(content);
        }
        Some(slot)
    }

    pub fn release_state_slot(&mut self, slot: u32) {
        self.states.release(slot);
        self.num_releases += 1;
    }

    /// The state slot that holds the state after a content.
    pub fn checkpoint(&self, content: ContentId) -> Option<u32> {
        self.prefix.as_ref()?.checkpoint(content)
    }

    /// Makes a held state slot the checkpoint of a content. If the content is unknown or already has one, the slot is freed.
    pub fn keep_state(&mut self, slot: u32, content: ContentId) {
        self.num_releases += 1;
        if let Some(prefix) = self.prefix.as_mut()
            && prefix.set_checkpoint(content, slot)
        {
            self.states.keep(slot, content, prefix.owner(content));
        } else {
            self.states.release(slot);
        }
    }

    /// Gives a sequence the state after a content, which must have a checkpoint. Returns a slot for the sequence and the copy to make
    /// before the step. If there is no slot for a copy, the sequence takes the checkpoint itself.
    pub fn acquire_checkpoint(&mut self, content: ContentId) -> Option<(u32, Option<(u32, u32)>)> {
        let from = self.checkpoint(content)?;
        self.states.read(from);
        if let Some(to) = self.allocate_state_slot() {
            return Some((to, Some((from, to))));
        }
        self.states.take_over(from);
        self.prefix.as_mut()?.forget_checkpoint(content);
        Some((from, None))
    }

    /// Frees the checkpoint of a content, unless a sequence has continued from that checkpoint.
    pub fn drop_unused_checkpoint(&mut self, content: ContentId) {
        if let Some(slot) = self.checkpoint(content).filter(|&slot| !self.states.was_reused(slot))
            && let Some(prefix) = &mut self.prefix
        {
            prefix.forget_checkpoint(content);
            self.states.forget(slot);
        }
    }

    #[cfg(test)]
    pub fn num_checkpoints(&self) -> usize {
        self.states.num_checkpoints()
    }

    /// Checks that each state slot is in `held`, free or a checkpoint; panics otherwise.
    #[cfg(test)]
    pub fn check_state_slots(&self, held: impl Iterator<Item = u32>) {
        self.states.check(held, |content| self.checkpoint(content));
    }

    /// Checks the invariant and that the references are exactly those of `tables`; panics otherwise.
    #[cfg(test)]
    pub fn check_blocks<'a>(&self, tables: impl Iterator<Item = &'a [u32]>) {
        let mut held = vec![0u32; self.capacity.num_blocks];
        tables.flatten().for_each(|&block| held[block as usize] += 1);
        assert_eq!(held, self.references, "references");
        let mut places: Vec<u32> = held.iter().map(|&n| u32::from(n > 0)).collect();
        self.free.iter().for_each(|&Reverse(block)| places[block as usize] += 1);
        let unreferenced: Vec<u32> = self.prefix.iter().flat_map(|prefix| prefix.unreferenced.iter()).collect();
        assert_eq!(unreferenced.len(), self.num_available() - self.free.len());
        for &block in &unreferenced {
            places[block as usize] += 1;
            assert!(self.prefix.as_ref().is_some_and(|p| p.is_cached(block)));
        }
        for &Reverse(block) in &self.free {
            assert!(!self.prefix.as_ref().is_some_and(|p| p.is_cached(block)), "free block {block} is cached");
        }
        let (backed, beyond) = places.split_at(self.num_backed);
        assert!(backed.iter().all(|&n| n == 1), "each block is held, free or cached: {backed:?}");
        assert!(beyond.iter().all(|&n| n == 0), "a block without memory is none of these: {beyond:?}");
        assert!((self.num_backed..places.len()).all(|block| !self.prefix.as_ref().is_some_and(|p| p.is_cached(block as u32))));
    }
}

#[cfg(test)]
#[path = "block_manager_tests.rs"]
mod tests;
