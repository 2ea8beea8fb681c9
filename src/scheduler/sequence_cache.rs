//! The memory that one running sequence holds: KV blocks, and for a model with recurrent state a state slot.

use crate::block_manager::BlockManager;
use crate::prefix::{ContentId, ROOT};
use crate::tokens::Tokens;

/// Empty unless the sequence runs.
#[derive(Debug, Default)]
pub struct SequenceCache {
    /// Blocks for positions 0, block_size, 2 * block_size …
    block_table: Vec<u32>,
    /// Holds the state after the tokens computed so far.
    state_slot: Option<u32>,
    /// Leading blocks that the prefix cache knows, and the content of the last of them.
    num_registered: usize,
    last_content: ContentId,
    /// Buffer for the tokens of one block.
    block_tokens: Vec<u32>,
}

/// Copies that a fork needs before the step's rows run, as (from, to).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForkCopies {
    pub block: Option<(u32, u32)>,
    pub state: Option<(u32, u32)>,
}

impl SequenceCache {
    pub fn block_table(&self) -> &[u32] {
        &self.block_table
    }

    pub fn state_slot(&self) -> Option<u32> {
        self.state_slot
    }

    pub fn is_empty(&self) -> bool {
        self.block_table.is_empty() && self.state_slot.is_none()
    }

    /// Takes the cached blocks of the longest known prefix of `tokens`, then free blocks for the rest, and a state slot if the model has
    /// state. At least one token is left to compute, since its logits are wanted. Returns the number of tokens found in the cache, or
    /// None if too little memory is available; then the sequence holds nothing.
    ///
    /// `may_reuse`: whether cached blocks may be taken. `headroom`: blocks that must stay available.
    pub fn take(&mut self, blocks: &mut BlockManager, tokens: &Tokens, salt: u64, may_reuse: bool, headroom: usize) -> Option<usize> {
        debug_assert!(self.is_empty());
        let block_size = blocks.block_size();
        let num_reusable = if may_reuse { (tokens.len() - 1) / block_size } else { 0 };
        self.last_content = ROOT;
        for index in 0..num_reusable {
            tokens.copy_block(index, block_size, &mut self.block_tokens);
            let Some((block, id)) = blocks.acquire_cached(salt, self.last_content, &self.block_tokens) else { break };
            self.block_table.push(block);
            self.last_content = id;
        }
        self.num_registered = self.block_table.len();
        let needed = tokens.len().div_ceil(block_size) - self.num_registered;
        if needed + headroom > blocks.num_available() || !self.take_state_slot(blocks) {
            self.release(blocks);
            return None;
        }
        self.block_table.extend((0..needed).map_while(|_| blocks.allocate()));
        Some(self.num_registered * block_size)
    }

    /// Shares the blocks of `relative` that hold the first `num_tokens` tokens. If the last of these blocks is not full, this sequence
    /// will write to it and gets a copy. Returns None if too little memory is available; then the sequence holds nothing.
    pub fn fork(&mut self, relative: &Self, num_tokens: usize, blocks: &mut BlockManager, headroom: usize) -> Option<ForkCopies> {
        debug_assert!(self.is_empty());
        if 1 + headroom > blocks.num_available() || !self.take_state_slot(blocks) {
            return None;
        }
        let Some(own) = blocks.allocate() else {
            self.release(blocks);
            return None;
        };
        let num_full = num_tokens / blocks.block_size();
        for &block in &relative.block_table[..num_full] {
            blocks.share(block);
            self.block_table.push(block);
        }
        self.block_table.push(own);
        self.num_registered = 0;
        self.last_content = ROOT;
        let begun = !num_tokens.is_multiple_of(blocks.block_size());
        Some(ForkCopies { block: begun.then(|| (relative.block_table[num_full], own)), state: relative.state_slot.zip(self.state_slot) })
    }

    fn take_state_slot(&mut self, blocks: &mut BlockManager) -> bool {
        if blocks.has_state() {
            self.state_slot = blocks.allocate_state_slot();
        }
        self.state_slot.is_some() || !blocks.has_state()
    }

    /// Makes room for the token at `position`. False if that needs a block and none is available.
    pub fn grow(&mut self, position: usize, blocks: &mut BlockManager) -> bool {
        if position == self.block_table.len() * blocks.block_size() {
            let Some(block) = blocks.allocate() else { return false };
            self.block_table.push(block);
        }
        true
    }

    /// Makes the blocks that are full of the first `num_tokens` tokens reusable, since their K and V are computed.
    pub fn register(&mut self, num_tokens: usize, tokens: &Tokens, salt: u64, blocks: &mut BlockManager) {
        if !blocks.caches_prefixes() {
            return;
        }
        while self.num_registered < num_tokens / blocks.block_size() {
            tokens.copy_block(self.num_registered, blocks.block_size(), &mut self.block_tokens);
            let block = self.block_table[self.num_registered];
            self.last_content = blocks.register(block, salt, self.last_content, &self.block_tokens);
            self.num_registered += 1;
        }
    }

    /// Releases everything. The last block goes first, so that the prefix cache evicts the end of a prefix before its beginning.
    pub fn release(&mut self, blocks: &mut BlockManager) {
        while let Some(block) = self.block_table.pop() {
            blocks.release(block);
        }
        if let Some(slot) = self.state_slot.take() {
            blocks.release_state_slot(slot);
        }
        self.num_registered = 0;
    }
}

#[cfg(test)]
#[path = "sequence_cache_tests.rs"]
mod tests;
