//! [`Loading`]: a prompt whose prefix is read from files.

use std::collections::VecDeque;
use std::time::Instant;

use crossbeam_channel::{Receiver, TryRecvError};

use crate::block_key::BlockItems;
use crate::block_manager::BlockManager;
use crate::cache_size::CacheSize;
use crate::prefix_cache::{ContentId, ROOT};
use crate::sequence::Sequence;
use engine::{CachePart, Engine, EngineError, PortableCache};
use metrics::ModelMetrics;
use tiers::{Identity, Key, Loaded, Part, Store, Wanted};

/// The most files that are put into blocks between two steps.
const AT_ONCE: usize = 32;

/// What files hold of a prompt beyond the cache.
#[derive(Debug, Default)]
pub struct Found {
    /// The contents of the leading blocks that the cache knows.
    contents: Vec<ContentId>,
    /// The blocks of the cache that the prefix needs.
    cached: Vec<u32>,
    /// What to read, each with the index of its block.
    pub wanted: Vec<(usize, Wanted)>,
    /// Number of tokens that need not be computed if everything comes.
    pub num_gained: usize,
}

/// A walk along a prompt, as `SequenceCache::find` does it.
#[derive(Default)]
struct Walk {
    /// For each group, the start of the current run of blocks that are there.
    runs: Vec<usize>,
    /// The longest prefix that a sequence can continue [blocks].
    hit: usize,
}

impl Walk {
    fn new(num_groups: usize) -> Self {
        Self { runs: vec![0; num_groups], hit: 0 }
    }

    /// Looks at a block. `there`: whether it is there in each group. `has_state`: whether the state behind it is there or none is needed.
    fn step(&mut self, index: usize, there: &[bool], has_state: bool, blocks: &BlockManager) {
        let (end, block_size) = (index + 1, blocks.block_size());
        self.runs.iter_mut().zip(there).filter(|(_, there)| !**there).for_each(|(run, _)| *run = end);
        let mut groups = self.runs.iter().zip(blocks.groups());
        if has_state && groups.all(|(run, group)| *run <= group.first_block(end * block_size, block_size)) {
            self.hit = end;
        }
    }
}

/// What is known of a block of a prompt.
struct Step {
    identity: Identity,
    content: Option<ContentId>,
}

/// Finds what files hold of a sequence's prompt, beyond what the cache holds.
pub fn find(sequence: &Sequence, blocks: &BlockManager, store: &Store, cache: &PortableCache) -> Found {
    let (block_size, num_groups) = (blocks.block_size(), blocks.groups().len());
    let (tokens, scopes) = (sequence.tokens(), sequence.block_scopes(blocks));
    let mut items = BlockItems::default();
    let mut steps: Vec<Step> = Vec::new();
    let (mut own, mut with_files) = (Walk::new(num_groups), Walk::new(num_groups));
    for index in 0..sequence.num_reusable(blocks.has_state()) / block_size {
        tokens.copy_block(index, block_size, &mut items);
        let before = steps.last();
        let Some(parent) = before.map_or_else(|| blocks.saved_parent(ROOT), |step| Some(step.identity.hash)) else { break };
        let Some(identity) = scopes.identity(index, block_size, &parent, &items) else { break };
        let parent = before.map_or(Some(ROOT), |step| step.content);
        let content = parent.and_then(|parent| blocks.find(scopes.of_block(index, block_size), parent, &items));
        let cached: Vec<bool> = (0..num_groups).map(|group| is_cached(blocks, content, group)).collect();
        let saved = |part| store.contains(&Key { content: identity.hash, part });
        let there: Vec<bool> = (0..num_groups).map(|group| cached[group] || saved(Part::Block(group as u8))).collect();
        if !there.contains(&true) {
            break;
        }
        let is_checkpoint = !blocks.has_state() || content.is_some_and(|content| blocks.checkpoint(content).is_some());
        own.step(index, &cached, is_checkpoint, blocks);
        with_files.step(index, &there, is_checkpoint || saved(Part::State), blocks);
        steps.push(Step { identity, content });
    }
    steps.truncate(with_files.hit);
    if with_files.hit <= own.hit { Found::default() } else { plan(&steps, own.hit, (blocks, store, cache)) }
}

fn is_cached(blocks: &BlockManager, content: Option<ContentId>, group: usize) -> bool {
    content.is_some_and(|content| blocks.cached_block(content, group).is_some())
}

/// Lists what to read for a prefix of these blocks, of which the cache alone would give `own`.
fn plan(steps: &[Step], own: usize, (blocks, store, cache): (&BlockManager, &Store, &PortableCache)) -> Found {
    let (block_size, end) = (blocks.block_size(), steps.len());
    let mut found = Found { num_gained: (end - own) * block_size, ..Found::default() };
    found.contents.extend(steps.iter().map_while(|step| step.content));
    let wanted = |identity: &Identity, part, len| Wanted { key: Key { content: identity.hash, part }, identity: identity.clone(), len };
    for (index, Step { identity, content }) in steps.iter().enumerate() {
        let before = found.wanted.len();
        let mut spare = None;
        for (number, group) in blocks.groups().iter().enumerate() {
            let is_needed = index >= group.first_block(end * block_size, block_size);
            let block = content.and_then(|content| blocks.cached_block(content, number));
            let file = wanted(identity, Part::Block(number as u8), cache.block_bytes);
            match block {
                Some(block) if is_needed => found.cached.push(block),
                Some(_) => {}
                None if is_needed => found.wanted.push((index, file)),
                None if store.contains(&file.key) => spare = Some(file),
                None => {}
            }
        }
        // The cache knows a content only while it has a block of it, and the blocks behind only if it knows the content.
        if content.is_none() && found.wanted.len() == before {
            found.wanted.extend(spare.map(|file| (index, file)));
        }
    }
    if let Some(Step { identity, content }) = steps.last().filter(|_| blocks.has_state())
        && content.is_none_or(|content| blocks.checkpoint(content).is_none())
    {
        found.wanted.push((end - 1, wanted(identity, Part::State, cache.state_bytes)));
    }
    found
}

/// The cache that files are put into.
pub struct Blocks<'a> {
    pub engine: &'a mut dyn Engine,
    pub blocks: &'a mut BlockManager,
    pub metrics: &'a ModelMetrics,
    pub cache_size: &'a mut CacheSize,
    /// Number of blocks that must stay available.
    pub reserve: usize,
}

/// Sets a content among those of the blocks before it. If it is another than before, so are those behind it.
fn set(contents: &mut Vec<ContentId>, index: usize, content: ContentId) {
    if contents.get(index) != Some(&content) {
        contents.truncate(index);
        contents.push(content);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Files are still to come.
    Waits,
    Over,
}

#[derive(Debug)]
pub struct Loading {
    /// The sequences that wait, at least one until all are cancelled. They share a prompt.
    pub sequences: Vec<Sequence>,
    pub deadline: Instant,
    files: Receiver<Loaded>,
    wanted: VecDeque<(usize, Wanted)>,
    /// The contents of the leading blocks, as far as the cache knows them.
    contents: Vec<ContentId>,
    /// Blocks that must not be evicted meanwhile.
    held: Vec<u32>,
    block_items: BlockItems,
}

impl Loading {
    pub fn new(sequence: Sequence, found: Found, (files, deadline): (Receiver<Loaded>, Instant), blocks: &mut BlockManager) -> Self {
        let Found { contents, cached, wanted, .. } = found;
        cached.iter().for_each(|&block| blocks.acquire_cached(block));
        let (wanted, sequences) = (wanted.into(), vec![sequence]);
        Self { sequences, deadline, files, wanted, contents, held: cached, block_items: BlockItems::default() }
    }

    pub fn files(&self) -> &Receiver<Loaded> {
        &self.files
    }

    /// Puts the files that have been read into the cache.
    ///
    /// # Errors
    /// The device is lost.
    pub fn advance(&mut self, to: &mut Blocks) -> Result<Progress, EngineError> {
        for _ in 0..AT_ONCE {
            let loaded = match self.files.try_recv() {
                Ok(loaded) => loaded,
                Err(TryRecvError::Empty) => return Ok(Progress::Waits),
                Err(TryRecvError::Disconnected) => return Ok(Progress::Over),
            };
            let Some((index, wanted)) = self.wanted.pop_front() else { return Ok(Progress::Over) };
            let is_there = match wanted.key.part {
                Part::Block(group) => self.put_block((index, group.into()), (&wanted.identity, &loaded), to),
                Part::State => self.put_state(&loaded, to),
            };
            match is_there {
                Ok(true) if self.wanted.is_empty() => return Ok(Progress::Over),
                Ok(true) => {}
                Err(error) if error.is_final() => return Err(error),
                Ok(false) | Err(_) => return Ok(Progress::Over),
            }
        }
        Ok(Progress::Waits)
    }

    /// Puts a block into the cache. Returns whether the cache has it now.
    fn put_block(
        &mut self,
        (index, group): (usize, usize),
        (identity, loaded): (&Identity, &Loaded),
        to: &mut Blocks,
    ) -> Result<bool, EngineError> {
        let Self { sequences, contents, held, wanted, block_items, .. } = self;
        let sequence = &sequences[0];
        let block_size = to.blocks.block_size();
        sequence.tokens().copy_block(index, block_size, block_items);
        let scope = sequence.block_scopes(to.blocks).of_block(index, block_size);
        let Some(&parent) = index.checked_sub(1).map_or(Some(&ROOT), |before| contents.get(before)) else { return Ok(false) };
        // Another sequence may have computed or loaded it meanwhile.
        let known = to.blocks.find(scope, parent, block_items);
        if let Some((content, block)) = known.and_then(|content| Some((content, to.blocks.cached_block(content, group)?))) {
            to.blocks.acquire_cached(block);
            held.push(block);
            set(contents, index, content);
            return Ok(true);
        }
        to.cache_size.make_free(to.engine, to.blocks, to.metrics, wanted.len() + 1 + to.reserve)?;
        if to.blocks.num_available() <= to.reserve {
            return Ok(false);
        }
        let Some(block) = to.blocks.allocate() else { return Ok(false) };
        if let Err(error) = to.engine.import(CachePart::Block(block), loaded.payload()) {
            to.blocks.release(block);
            return Err(error);
        }
        let blocks = (0..to.blocks.groups().len()).map(|other| (other == group).then_some(block)).collect::<Vec<_>>();
        let content = to.blocks.register((scope, sequence.client().tenant), parent, block_items, blocks.into_iter());
        let is_there = to.blocks.cached_block(content, group) == Some(block);
        to.blocks.set_identity(content, identity.clone(), true);
        held.push(block);
        if known.is_none() {
            to.metrics.prefix_cache_disk_hits_total.inc_by(block_size as u64);
        }
        set(contents, index, content);
        Ok(is_there)
    }

    /// Puts the state behind the last content into the cache.
    fn put_state(&mut self, loaded: &Loaded, to: &mut Blocks) -> Result<bool, EngineError> {
        let (Some(&content), Some(slot)) = (self.contents.last(), to.blocks.allocate_state_slot()) else { return Ok(false) };
        let imported = to.engine.import(CachePart::State(slot), loaded.payload());
        match imported {
            Ok(()) => to.blocks.keep_state(slot, content),
            Err(_) => to.blocks.release_state_slot(slot),
        }
        imported.map(|()| true)
    }

    /// Lets go of the blocks, of which the sequences will find those that are contents of the cache.
    pub fn end(self, blocks: &mut BlockManager) -> Vec<Sequence> {
        self.held.iter().rev().for_each(|&block| blocks.release(block));
        self.sequences
    }

    #[cfg(test)]
    pub fn held_blocks(&self) -> &[u32] {
        &self.held
    }
}
