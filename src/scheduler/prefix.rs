//! The prefix cache: which block holds which tokens after which prefix.
//!
//! The content of a block has an id that is never reused. Its key is (salt, id of the previous block's content, its tokens). A lookup
//! compares the tokens themselves, so by induction a hit means that the whole prefix is equal, whatever the hash function does.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Identifies the content of a cached block. [`ROOT`] precedes a sequence's first block.
pub type ContentId = u64;
pub const ROOT: ContentId = 0;

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug, Default)]
struct Entry {
    /// [`ROOT`] if the block is not cached.
    id: ContentId,
    parent: ContentId,
    salt: u64,
    hash: u64,
}

/// Contents of blocks, and the unreferenced cached blocks from least to most recently used.
#[derive(Debug)]
pub struct PrefixCache {
    block_size: usize,
    hasher: RandomState,
    index: HashMap<u64, u32>,
    entries: Vec<Entry>, // [num_blocks]
    tokens: Vec<u32>,    // [num_blocks, block_size]
    next_id: ContentId,
    links: Vec<(u32, u32)>, // [num_blocks + 1] (previous, next); the last one is the head of the list
    num_unreferenced: usize,
}

impl PrefixCache {
    pub fn new(num_blocks: usize, block_size: usize) -> Self {
        let mut links = vec![(NONE, NONE); num_blocks + 1];
        links[num_blocks] = (num_blocks as u32, num_blocks as u32);
        Self {
            block_size,
            hasher: RandomState::new(),
            index: HashMap::new(),
            entries: vec![Entry::default(); num_blocks],
            tokens: vec![0; num_blocks * block_size],
            next_id: ROOT + 1,
            links,
            num_unreferenced: 0,
        }
    }

    pub fn is_cached(&self, block: u32) -> bool {
        self.entries[block as usize].id != ROOT
    }

    pub fn num_unreferenced(&self) -> usize {
        self.num_unreferenced
    }

    /// Finds the block that holds `tokens` after `parent`.
    pub fn find(&self, salt: u64, parent: ContentId, tokens: &[u32]) -> Option<(u32, ContentId)> {
        let block = *self.index.get(&self.hash(salt, parent, tokens))?;
        let entry = &self.entries[block as usize];
        let equal = entry.salt == salt && entry.parent == parent && self.tokens_of(block) == tokens;
        equal.then_some((block, entry.id))
    }

    /// Records that `block` holds `tokens` after `parent`. Returns the content's id. If a block with the same content is cached already
    /// (another block, or this one, recorded by a sequence that shares it), the id is that block's.
    pub fn insert(&mut self, block: u32, salt: u64, parent: ContentId, tokens: &[u32]) -> ContentId {
        if let Some((_, id)) = self.find(salt, parent, tokens) {
            return id;
        }
        let id = self.next_id;
        self.next_id += 1;
        let hash = self.hash(salt, parent, tokens);
        // If two contents share a hash, the first stays and the second is never found.
        if let std::collections::hash_map::Entry::Vacant(vacant) = self.index.entry(hash) {
            vacant.insert(block);
            self.entries[block as usize] = Entry { id, parent, salt, hash };
            let start = block as usize * self.block_size;
            self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        }
        id
    }

    /// A cached block lost its last reference. It may be evicted, after all blocks that are unreferenced already.
    pub fn push_unreferenced(&mut self, block: u32) {
        let head = self.links.len() as u32 - 1;
        let last = self.links[head as usize].0;
        self.links[block as usize] = (last, head);
        self.links[last as usize].1 = block;
        self.links[head as usize].0 = block;
        self.num_unreferenced += 1;
    }

    /// An unreferenced cached block gets a reference, so it may no longer be evicted.
    pub fn take_unreferenced(&mut self, block: u32) {
        let (previous, next) = std::mem::replace(&mut self.links[block as usize], (NONE, NONE));
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.num_unreferenced -= 1;
    }

    /// Removes the least recently used unreferenced block from the cache and returns it.
    pub fn evict(&mut self) -> Option<u32> {
        let head = self.links.len() - 1;
        let block = self.links[head].1;
        if block as usize == head {
            return None;
        }
        self.take_unreferenced(block);
        let entry = std::mem::take(&mut self.entries[block as usize]);
        self.index.remove(&entry.hash);
        Some(block)
    }

    /// Unreferenced blocks in the order in which they will be evicted.
    #[cfg(test)]
    pub fn unreferenced(&self) -> Vec<u32> {
        let head = self.links.len() as u32 - 1;
        let next = |&block: &u32| Some(self.links[block as usize].1);
        std::iter::successors(next(&head), next).take_while(|&block| block != head).collect()
    }

    fn tokens_of(&self, block: u32) -> &[u32] {
        let start = block as usize * self.block_size;
        &self.tokens[start..start + self.block_size]
    }

    fn hash(&self, salt: u64, parent: ContentId, tokens: &[u32]) -> u64 {
        self.hasher.hash_one((salt, parent, tokens))
    }
}
