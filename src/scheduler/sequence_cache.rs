//! The cache memory of one running sequence: KV blocks of each cache group and, for a model with recurrent state, a state slot.
//!
//! A group with a window keeps only the blocks that later rows can see. Earlier blocks are given back, and their table entries are 0.
//!
//! **Checkpoints.** A recurrent state can be copied only while it is at the wanted position. So chunks of a prompt end at the block
//! boundaries that [`checkpoints`](crate::checkpoints) names, and the next step copies the state before the state advances. The copy
//! becomes the prefix's checkpoint once the prefix's last block is registered.

use std::ops::Range;

use crate::block_key::{BlockItems, BlockScopes};
use crate::block_manager::BlockManager;
use crate::checkpoints::Checkpoints;
use crate::lru::Owner;
use crate::prefix_cache::{ContentId, ROOT};
use crate::tokens::Tokens;

/// The blocks and state slots of a sequence. Empty unless the sequence runs.
#[derive(Debug, Default)]
pub struct SequenceCache {
    tables: Vec<BlockTable>, // [num_groups]
    /// The slot with the state after the tokens computed so far.
    state_slot: Option<u32>,
    /// Whether the state has tokens behind those that count, so that no other sequence may continue from it.
    is_state_ahead: bool,
    /// The contents of the leading blocks that are registered in the prefix cache.
    contents: Vec<ContentId>,
    /// A copy of the state for a content that is not registered yet: (number of tokens, state slot).
    saved: Option<(usize, u32)>,
    /// Number of tokens whose step has ended.
    num_committed: usize,
    /// The latest checkpoint within the generated tokens, unless it is one of the evenly spaced ones. The next one replaces it.
    tail: Option<ContentId>,
    /// Number of leading tokens whose keys and values were cached, if the sequence had to start before their end because no checkpoint was
    /// there.
    branch: Option<usize>,
    /// Buffer for the contents of one block.
    block_items: BlockItems,
}

/// The blocks of one cache group, for positions 0, block_size, 2 * block_size …
#[derive(Clone, Debug, Default)]
struct BlockTable {
    blocks: Vec<u32>,
    /// Number of leading entries without a block, which are 0.
    num_left: usize,
}

impl BlockTable {
    fn get(&self, index: usize) -> Option<u32> {
        self.blocks.get(index).copied().filter(|_| index >= self.num_left)
    }
}

/// The reusable prefix that a sequence found in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixHit {
    pub num_tokens: usize,
    /// The state slot to copy before the step's rows run, as (from, to).
    pub state_copy: Option<(u32, u32)>,
}

/// Copies that a fork needs before the step's rows run, as (from, to).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForkCopies {
    pub blocks: Vec<(u32, u32)>,
    pub state: Option<(u32, u32)>,
}

/// The longest prefix that a sequence can continue.
#[derive(Clone, Copy, Debug, Default)]
struct BlockHit {
    num_blocks: usize,
    /// Number of leading blocks whose keys and values are all cached. Only the state at their end may be missing.
    num_computed: usize,
}

impl SequenceCache {
    pub fn block_table(&self, group: usize) -> &[u32] {
        self.tables.get(group).map_or(&[], |table| &table.blocks)
    }

    pub fn state_slot(&self) -> Option<u32> {
        self.state_slot
    }

    /// Records that the state has tokens behind the end of the sequence.
    pub fn state_is_ahead(&mut self) {
        self.is_state_ahead = true;
    }

    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|table| table.blocks.is_empty()) && self.state_slot.is_none() && self.saved.is_none()
    }

    /// Number of leading tokens whose keys and values were cached, if the sequence had to start before their end because no checkpoint was
    /// there.
    pub fn branch(&self) -> Option<usize> {
        self.branch
    }

    /// Whether `block` is block `index` of any group.
    pub fn holds_at(&self, index: usize, block: u32) -> bool {
        self.tables.iter().any(|table| table.get(index) == Some(block))
    }

    /// Takes the cached blocks and the state of the longest usable prefix of `tokens`, and free blocks for the rest. Groups without a
    /// window get blocks for all tokens, the others as many as the sequence must hold at once. Returns None if too little memory is
    /// available. Then the sequence holds nothing.
    ///
    /// `num_reusable`: the most tokens that may come from the cache. At least one token must be left to compute, for its logits.
    /// `headroom`: blocks that must stay available.
    pub fn take(
        &mut self,
        blocks: &mut BlockManager,
        tokens: Tokens,
        scopes: BlockScopes,
        num_reusable: usize,
        headroom: usize,
    ) -> Option<PrefixHit> {
        debug_assert!(self.is_empty());
        let block_size = blocks.block_size();
        let hit = self.find(blocks, tokens, scopes, num_reusable / block_size);
        self.acquire(blocks, hit.num_blocks);
        let (all, start) = (tokens.len().div_ceil(block_size), hit.num_blocks * block_size);
        // A step that copies a state must run the sequence's next rows.
        let next = (start + tokens.prompt.num_together(start)).div_ceil(block_size);
        let groups = blocks.groups().iter().zip(&self.tables);
        let wanted: Vec<usize> =
            groups.map(|(group, table)| all.min(next.max(table.num_left + group.num_blocks(tokens.len(), block_size)))).collect();
        let needed: usize = wanted.iter().map(|wanted| wanted - hit.num_blocks).sum();
        let state_copy = if blocks.claim(needed + headroom) { self.take_state(blocks) } else { None };
        let Some(state_copy) = state_copy else {
            self.release(blocks, 0);
            return None;
        };
        for (table, wanted) in self.tables.iter_mut().zip(wanted) {
            table.blocks.extend((hit.num_blocks..wanted).map_while(|_| blocks.allocate()));
        }
        self.branch = (hit.num_computed > hit.num_blocks).then_some(hit.num_computed * block_size);
        Some(PrefixHit { num_tokens: hit.num_blocks * block_size, state_copy })
    }

    /// Finds the longest prefix of at most `num_reusable` blocks that the sequence can continue and that cuts no whole run. Leaves the
    /// prefix's contents in `contents`.
    fn find(&mut self, blocks: &BlockManager, tokens: Tokens, scopes: BlockScopes, num_reusable: usize) -> BlockHit {
        let (block_size, groups) = (blocks.block_size(), blocks.groups());
        let mut hit = BlockHit::default();
        // For each group, the start of the current run of cached blocks.
        let mut runs = vec![0; groups.len()];
        for index in 0..num_reusable {
            tokens.copy_block(index, block_size, &mut self.block_items);
            let parent = self.contents.last().copied().unwrap_or(ROOT);
            let Some(content) = blocks.find(scopes.of_block(index, block_size), parent, &self.block_items) else { break };
            self.contents.push(content);
            let end = index + 1;
            for (group, run) in runs.iter_mut().enumerate() {
                if blocks.cached_block(content, group).is_none() {
                    *run = end;
                }
            }
            let is_complete = runs.iter().zip(groups).all(|(run, group)| *run <= group.first_block(end * block_size, block_size));
            if is_complete && tokens.prompt.boundary_before(end * block_size) == end * block_size {
                hit.num_computed = end;
                if !blocks.has_state() || blocks.checkpoint(content).is_some() {
                    hit.num_blocks = end;
                }
            }
        }
        self.contents.truncate(hit.num_blocks);
        hit
    }

    /// Takes those blocks of the found contents that later rows can see.
    fn acquire(&mut self, blocks: &mut BlockManager, num_blocks: usize) {
        let end = num_blocks * blocks.block_size();
        let firsts: Vec<usize> = blocks.groups().iter().map(|group| group.first_block(end, blocks.block_size()).min(num_blocks)).collect();
        self.tables = firsts.iter().map(|&num_left| BlockTable { blocks: vec![0; num_left], num_left }).collect();
        for (group, table) in self.tables.iter_mut().enumerate() {
            for &content in &self.contents[table.num_left..] {
                let Some(block) = blocks.cached_block(content, group) else { unreachable!("the content's block was found") };
                blocks.acquire_cached(block);
                table.blocks.push(block);
            }
        }
    }

    /// Takes a state slot if the model has state. Returns the copy that brings the slot to the end of the contents, or None if there is no
    /// slot.
    fn take_state(&mut self, blocks: &mut BlockManager) -> Option<Option<(u32, u32)>> {
        if !blocks.has_state() {
            return Some(None);
        }
        let (slot, copy) = match self.contents.last() {
            Some(&content) => blocks.acquire_checkpoint(content)?,
            None => (blocks.allocate_state_slot()?, None),
        };
        self.state_slot = Some(slot);
        Some(copy)
    }

    /// Whether the sequence holds every block that a row after the first `num_tokens` tokens can see.
    pub fn covers(&self, num_tokens: usize, blocks: &BlockManager) -> bool {
        let block_size = blocks.block_size();
        self.tables.iter().zip(blocks.groups()).all(|(table, group)| table.num_left <= group.first_block(num_tokens, block_size))
    }

    /// Shares the blocks of `relative` that hold the tokens before `next`, which it must [cover](Self::covers), and takes blocks for those
    /// in `next`. If the last of the shared blocks is not full, this sequence will write to it and gets a copy. Returns None if too little
    /// memory is available. Then the sequence holds nothing.
    pub fn fork(&mut self, relative: &Self, next: Range<usize>, blocks: &mut BlockManager, headroom: usize) -> Option<ForkCopies> {
        debug_assert!(self.is_empty());
        let (block_size, num_groups, num_tokens) = (blocks.block_size(), blocks.groups().len(), next.start);
        let num_own = next.end.div_ceil(block_size) - num_tokens / block_size;
        if !blocks.claim(num_groups * num_own + headroom) {
            return None;
        }
        if blocks.has_state() {
            self.state_slot = Some(blocks.allocate_state_slot()?);
        }
        let (num_full, begun) = (num_tokens / block_size, !num_tokens.is_multiple_of(block_size));
        let mut copies = ForkCopies { blocks: Vec::new(), state: relative.state_slot.zip(self.state_slot) };
        self.tables = vec![BlockTable::default(); num_groups];
        for (index, (table, from)) in self.tables.iter_mut().zip(&relative.tables).enumerate() {
            table.num_left = blocks.groups()[index].first_block(num_tokens, block_size);
            table.blocks.resize(table.num_left, 0);
            for &block in &from.blocks[table.num_left..num_full] {
                blocks.share(block);
                table.blocks.push(block);
            }
            for _ in 0..num_own {
                table.blocks.push(blocks.allocate()?);
            }
            copies.blocks.extend(begun.then(|| (from.blocks[num_full], table.blocks[num_full])));
        }
        self.contents.clear();
        self.contents.extend(relative.contents.iter().take(num_full));
        Some(copies)
    }

    /// Number of blocks that the first `num_tokens` tokens need and the sequence does not hold.
    pub fn num_missing(&self, num_tokens: usize, block_size: usize) -> usize {
        let lacking = self.tables.iter().filter(|table| table.blocks.len() * block_size < num_tokens);
        lacking.map(|table| num_tokens.div_ceil(block_size) - table.blocks.len()).sum()
    }

    /// Allocates blocks for the tokens in `range`. Returns the end of the tokens that got a block. `headroom`: blocks that must stay
    /// available. The blocks of the first `num_together` tokens ignore it.
    pub fn grow(&mut self, range: Range<usize>, num_together: usize, blocks: &mut BlockManager, headroom: usize) -> usize {
        let (block_size, Range { start, end }) = (blocks.block_size(), range);
        if self.num_missing(end, block_size) == 0 {
            return end;
        }
        for index in start / block_size..end.div_ceil(block_size) {
            let needed = self.num_missing((index + 1) * block_size, block_size);
            let kept = if index * block_size < start + num_together { 0 } else { headroom };
            if needed > 0 && !blocks.has(needed + kept) {
                return start.max(index * block_size);
            }
            for table in self.tables.iter_mut().filter(|table| table.blocks.len() == index) {
                table.blocks.extend(blocks.allocate());
            }
        }
        end
    }

    /// Like [`grow`](Self::grow), for tokens that need not run: takes no block that is not available now, beyond the `headroom`.
    pub fn grow_spare(&mut self, range: Range<usize>, blocks: &mut BlockManager, headroom: usize) -> usize {
        let block_size = blocks.block_size();
        let has_room = self.num_missing(range.end, block_size) + headroom <= blocks.num_available();
        let end = if has_room { range.end } else { range.end.min(range.start.next_multiple_of(block_size)) };
        self.grow(range.start..end, 0, blocks, headroom)
    }

    /// Registers the full blocks of the first `num_tokens` tokens in the prefix cache, since their K and V are computed. Gives back the
    /// blocks that no later row can see.
    pub fn commit(&mut self, num_tokens: usize, tokens: Tokens, (scopes, owner): (BlockScopes, Owner), blocks: &mut BlockManager) {
        let block_size = blocks.block_size();
        // The keys and values of a prompt whose items all see each other depend on the whole prompt, which a key does not hold.
        let is_cached = blocks.caches_prefixes() && !tokens.prompt.is_whole();
        while is_cached && self.contents.len() < num_tokens / block_size {
            let index = self.contents.len();
            tokens.copy_block(index, block_size, &mut self.block_items);
            let parent = self.contents.last().copied().unwrap_or(ROOT);
            let held = self.tables.iter().map(|table| table.get(index));
            let content = blocks.register((scopes.of_block(index, block_size), owner), parent, &self.block_items, held);
            self.contents.push(content);
            if let Some(hash) = blocks.saved_parent(parent).filter(|_| blocks.identity(content).is_none())
                && let Some(identity) = scopes.identity(index, block_size, &hash, &self.block_items)
            {
                blocks.set_identity(content, identity, false);
            }
        }
        for (index, table) in self.tables.iter_mut().enumerate() {
            let first = blocks.groups()[index].first_block(num_tokens, block_size);
            for block in &mut table.blocks[table.num_left.min(first)..first] {
                blocks.release(std::mem::take(block));
            }
            table.num_left = table.num_left.max(first);
        }
        self.num_committed = num_tokens;
        if let Some((at, content)) = self.keep_saved(blocks) {
            let is_last_only = at > tokens.prompt.len() && !Checkpoints::new(tokens.len(), None, block_size).is_spaced(at);
            if !is_last_only {
                blocks.save_state(content);
            }
            if let Some(last) = std::mem::replace(&mut self.tail, is_last_only.then_some(content)) {
                blocks.drop_unused_checkpoint(last);
            }
        }
    }

    /// Makes the saved state a checkpoint if the step that copied the state has ended. Returns the number of its tokens and its content.
    fn keep_saved(&mut self, blocks: &mut BlockManager) -> Option<(usize, ContentId)> {
        let (at, slot) = self.saved.take_if(|(at, _)| *at < self.num_committed)?;
        let content = self.contents[at / blocks.block_size() - 1];
        blocks.keep_state(slot, content);
        Some((at, content))
    }

    /// Takes a state slot for a copy of the state after the first `num_tokens` tokens. Returns the copy to make before the step's rows run,
    /// as (from, to). None if there is a checkpoint already, or no slot.
    pub fn save(&mut self, num_tokens: usize, blocks: &mut BlockManager) -> Option<(u32, u32)> {
        let content = self.contents.get(num_tokens / blocks.block_size() - 1);
        let is_known = content.is_some_and(|&content| blocks.checkpoint(content).is_some());
        let from = self.state_slot.filter(|_| !is_known && self.saved.is_none())?;
        let to = blocks.allocate_state_slot()?;
        self.saved = Some((num_tokens, to));
        Some((from, to))
    }

    /// Undoes [`save`](Self::save) for `num_tokens` tokens: the copy was not made.
    pub fn forget_saved(&mut self, num_tokens: usize, blocks: &mut BlockManager) {
        if let Some((_, slot)) = self.saved.take_if(|(at, _)| *at == num_tokens) {
            blocks.release_state_slot(slot);
        }
    }

    /// Releases everything. The last block is released first, so that the prefix cache evicts the end of a prefix before its beginning.
    /// `num_computed`: the number of tokens in the state, or 0 if the state is of no use. If a content ends there, the state becomes that
    /// content's checkpoint.
    pub fn release(&mut self, blocks: &mut BlockManager, num_computed: usize) {
        let num_known = self.contents.len() * blocks.block_size();
        if let Some((_, slot)) = self.saved.take() {
            blocks.release_state_slot(slot);
        }
        if let Some(slot) = self.state_slot.take() {
            let is_ahead = std::mem::take(&mut self.is_state_ahead);
            match self.contents.last().filter(|_| num_computed == num_known && !is_ahead) {
                Some(&content) => {
                    blocks.keep_state(slot, content);
                    blocks.save_state(content);
                }
                None => blocks.release_state_slot(slot),
            }
        }
        let longest = self.tables.iter().map(|table| table.blocks.len()).max().unwrap_or(0);
        for index in (0..longest).rev() {
            self.tables.iter().filter_map(|table| table.get(index)).for_each(|block| blocks.release(block));
        }
        self.tables.clear();
        self.contents.clear();
        (self.tail, self.branch, self.num_committed) = (None, None, 0);
    }

    /// The held blocks of each group.
    #[cfg(test)]
    pub fn held_blocks(&self) -> impl Iterator<Item = &[u32]> {
        self.tables.iter().map(|table| &table.blocks[table.num_left..])
    }

    /// The state slots of the sequence and of its copy.
    #[cfg(test)]
    pub fn held_slots(&self) -> impl Iterator<Item = u32> {
        self.state_slot.into_iter().chain(self.saved.map(|(_, slot)| slot))
    }
}

#[cfg(test)]
#[path = "sequence_cache_tests.rs"]
mod tests;
