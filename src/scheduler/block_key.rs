//! The key of a cached block: everything that its keys and values depend on.
//!
//! This is the only place that decides what makes two blocks equal. A block depends on the blocks before it, on the contents of its own
//! items, and on the scope of its sequence. Positions follow from the contents of all items so far, so they are no part of the key.

use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Range;

use crate::adapters::{AdapterRequest, block_adapters, saved_adapters};
use crate::items::RunContent;
use tiers::{Identity, Root};

/// The part of the key that all blocks of a sequence share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheScope {
    /// Blocks are shared only between sequences with the same salt.
    pub salt: u64,
    /// How keys and values are stored.
    pub format: u64,
    /// The adapter that changes the weights. 0 if there is none.
    pub adapter: u64,
}

/// The scopes of a sequence's blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockScopes<'a> {
    /// That of blocks without adapters.
    pub of_all: CacheScope,
    pub adapters: &'a [AdapterRequest],
}

impl BlockScopes<'_> {
    /// The scope of block `index`. Blocks before an adapter's first row are those of the model alone.
    pub fn of_block(self, index: usize, block_size: usize) -> CacheScope {
        CacheScope { adapter: block_adapters(self.adapters, index * block_size, block_size), ..self.of_all }
    }

    /// The identity of block `index`, which outlives the process. `parent`: the hash of the block before it, or the root. None for a block
    /// with rows of embeddings: what they depend on is known in this process alone.
    pub fn identity(self, index: usize, block_size: usize, parent: &Root, items: &BlockItems) -> Option<Identity> {
        if !items.runs.is_empty() {
            return None;
        }
        let mut scope = self.of_all.salt.to_le_bytes().to_vec();
        scope.extend(saved_adapters(self.adapters, index * block_size, block_size));
        Some(Identity::new(parent, index as u32, &scope, &items.entries))
    }
}

/// Marks an entry that is a row, by its index in its run. Ids of tokens are smaller.
const ROW: u32 = 1 << 31;

/// The contents of consecutive items: the ids of tokens, and the indices of rows with what identifies their runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockItems {
    entries: Vec<u32>,
    /// The runs that have rows here, in order. A run has all its rows in a prompt, so a new one begins at each entry for row 0.
    runs: Vec<RunContent>,
}

impl BlockItems {
    pub fn clear(&mut self) {
        self.entries.clear();
        self.runs.clear();
    }

    pub fn push_tokens(&mut self, ids: &[u32]) {
        debug_assert!(ids.iter().all(|&id| id < ROW));
        self.entries.extend_from_slice(ids);
    }

    /// Adds some rows of a run. The part of a run that lies in one block is added at once.
    pub fn push_rows(&mut self, run: RunContent, rows: Range<usize>) {
        self.entries.extend(rows.map(|row| ROW | row as u32));
        self.runs.push(run);
    }

    pub fn entries(&self) -> &[u32] {
        &self.entries
    }

    pub fn runs(&self) -> &[RunContent] {
        &self.runs
    }

    #[cfg(test)]
    pub fn tokens(ids: &[u32]) -> Self {
        Self { entries: ids.to_vec(), runs: Vec::new() }
    }
}

/// The key of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockKey<'a> {
    pub scope: CacheScope,
    /// The id of the content of the block before it.
    pub parent: u64,
    pub items: &'a BlockItems,
}

impl BlockKey<'_> {
    pub fn hash(&self, hasher: &impl BuildHasher) -> u64 {
        let mut state = hasher.build_hasher();
        // A hasher takes longer per write than per byte, so the numbers are written at once and a text's runs are not.
        let CacheScope { salt, format, adapter } = self.scope;
        [salt, format, adapter, self.parent].hash(&mut state);
        self.items.entries.hash(&mut state);
        if !self.items.runs.is_empty() {
            self.items.runs.hash(&mut state);
        }
        state.finish()
    }

    /// Whether a known block has this key.
    pub fn is(&self, scope: CacheScope, parent: u64, (entries, runs): (&[u32], &[RunContent])) -> bool {
        self.scope == scope && self.parent == parent && self.items.entries == *entries && self.items.runs == *runs
    }
}
