//! The prefix cache: maps items after a prefix to the blocks that hold their K and V, and to the state slot that holds the state after
//! them.
//!
//! The content of a block has an id that is never reused. Its key ([`BlockKey`]) holds the id of the previous block's content. A lookup
//! compares the keys themselves, so by induction a hit means that the whole prefix is equal, whatever the hash function does.
//!
//! A content has at most one block per cache group, and at least one block in total. The content is forgotten when it loses its last block.
//! Its checkpoint is forgotten when it loses any block, because a sequence that continues after a content reads all its blocks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::RandomState;

use crate::block_key::{BlockItems, BlockKey, CacheScope};
use crate::items::RunContent;
use crate::lru::{Lru, Owner};
use tiers::Identity;

/// Identifies the content of a cached block. [`ROOT`] precedes a sequence's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentId {
    /// Index of the content's node, if the content is known.
    node: u32,
    id: u64,
}

pub const ROOT: ContentId = ContentId { node: NONE, id: 0 };

const NONE: u32 = u32::MAX;

/// A known content.
#[derive(Clone, Debug, Default)]
struct Node {
    /// 0 if the node is unused.
    id: u64,
    parent: u64,
    scope: CacheScope,
    /// The runs of rows in the block. Empty for a block of tokens.
    runs: Box<[RunContent]>,
    hash: u64,
    num_blocks: usize,
    checkpoint: Option<u32>,
    /// The owner of the sequence that computed the content.
    owner: Owner,
    /// By which files know the content, if contents are saved.
    identity: Option<Identity>,
}

/// The known contents, and the list of their unreferenced blocks.
#[derive(Debug)]
pub struct PrefixCache {
    block_size: usize,
    num_groups: usize,
    hasher: RandomState,
    index: HashMap<u64, u32>,
    nodes: Vec<Node>,  // [num_blocks] enough, since each content has at least one block
    entries: Vec<u32>, // [num_blocks, block_size] of each node, see `BlockItems`
    blocks: Vec<u32>,  // [num_blocks, num_groups] blocks of each node, or NONE
    node_of: Vec<u32>, // [num_blocks] node of each block, or NONE
    free_nodes: Vec<u32>,
    next_id: u64,
    pub unreferenced: Lru,
}

impl PrefixCache {
    pub fn new(num_blocks: usize, num_groups: usize, block_size: usize) -> Self {
        Self {
            block_size,
            num_groups,
            hasher: RandomState::new(),
            index: HashMap::new(),
            nodes: vec![Node::default(); num_blocks],
            entries: vec![0; num_blocks * block_size],
            blocks: vec![NONE; num_blocks * num_groups],
            node_of: vec![NONE; num_blocks],
            free_nodes: (0..num_blocks as u32).rev().collect(),
            next_id: 1,
            unreferenced: Lru::new(num_blocks),
        }
    }

    /// Whether the content of a block is known.
    pub fn is_cached(&self, block: u32) -> bool {
        self.node_of[block as usize] != NONE
    }

    /// Finds the content `items` after `parent`.
    pub fn find(&self, scope: CacheScope, parent: ContentId, items: &BlockItems) -> Option<ContentId> {
        let key = BlockKey { scope, parent: parent.id, items };
        let index = *self.index.get(&key.hash(&self.hasher))?;
        let node = &self.nodes[index as usize];
        let entries = &self.entries[index as usize * self.block_size..][..self.block_size];
        key.is(node.scope, node.parent, (entries, &node.runs)).then_some(ContentId { node: index, id: node.id })
    }

    /// The block that holds a content in a group.
    pub fn block(&self, content: ContentId, group: usize) -> Option<u32> {
        self.node(content)?;
        Some(self.blocks[content.node as usize * self.num_groups + group]).filter(|&block| block != NONE)
    }

    /// Records the blocks that hold `items` after `parent`: one per group, or None for a group whose block is not held any more. Returns
    /// the content's id. A content that is known already keeps its present blocks.
    pub fn insert(
        &mut self,
        (scope, owner): (CacheScope, Owner),
        parent: ContentId,
        items: &BlockItems,
        blocks: impl Iterator<Item = Option<u32>>,
    ) -> ContentId {
        let content = self.find(scope, parent, items).unwrap_or_else(|| self.add((scope, owner), parent, items));
        if content.node == NONE {
            return content;
        }
        let start = content.node as usize * self.num_groups;
        for (known, block) in self.blocks[start..start + self.num_groups].iter_mut().zip(blocks) {
            let Some(block) = block.filter(|&block| *known == NONE && self.node_of[block as usize] == NONE) else { continue };
            *known = block;
            self.node_of[block as usize] = content.node;
            let node = &mut self.nodes[content.node as usize];
            node.num_blocks += 1;
            self.unreferenced.add_owned(node.owner);
        }
        if self.nodes[content.node as usize].num_blocks == 0 {
            self.forget(content.node);
            return ContentId { node: NONE, ..content };
        }
        content
    }

    /// Adds a content without blocks. If another content has the same hash, that one stays and the new one is never found.
    fn add(&mut self, (scope, owner): (CacheScope, Owner), parent: ContentId, items: &BlockItems) -> ContentId {
        let (id, hash) = (self.next_id, BlockKey { scope, parent: parent.id, items }.hash(&self.hasher));
        self.next_id += 1;
        let Entry::Vacant(vacant) = self.index.entry(hash) else { return ContentId { node: NONE, id } };
        // Never empty: there are as many nodes as blocks, and each used node has a block.
        let Some(node) = self.free_nodes.pop() else { return ContentId { node: NONE, id } };
        vacant.insert(node);
        let runs = items.runs().into();
        self.nodes[node as usize] =
            Node { id, parent: parent.id, scope, runs, hash, num_blocks: 0, checkpoint: None, owner, identity: None };
        let start = node as usize * self.block_size;
        self.entries[start..start + self.block_size].copy_from_slice(items.entries());
        ContentId { node, id }
    }

    fn forget(&mut self, node: u32) {
        let Node { hash, .. } = std::mem::take(&mut self.nodes[node as usize]);
        self.index.remove(&hash);
        self.free_nodes.push(node);
    }

    /// Takes the least recently used unreferenced block. Also returns its content's checkpoint, which is of no use without the block.
    pub fn evict(&mut self) -> Option<(u32, Option<u32>)> {
        let block = self.unreferenced.pop()?;
        Some((block, self.forget_block(block)))
    }

    /// Removes a block from its content. Returns the content's checkpoint, which is of no use without the block.
    pub fn forget_block(&mut self, block: u32) -> Option<u32> {
        let node = std::mem::replace(&mut self.node_of[block as usize], NONE);
        let start = node as usize * self.num_groups;
        self.blocks[start..start + self.num_groups].iter_mut().filter(|known| **known == block).for_each(|known| *known = NONE);
        let Node { num_blocks, checkpoint, owner, .. } = &mut self.nodes[node as usize];
        *num_blocks -= 1;
        self.unreferenced.remove_owned(*owner);
        let (is_empty, checkpoint) = (*num_blocks == 0, checkpoint.take());
        if is_empty {
            self.forget(node);
        }
        checkpoint
    }

    /// Adds a cached block to the unreferenced ones.
    pub fn release(&mut self, block: u32) {
        let owner = self.nodes[self.node_of[block as usize] as usize].owner;
        self.unreferenced.push(block, owner);
    }

    /// By which files know a content. None if it is unknown or not saved.
    pub fn identity(&self, content: ContentId) -> Option<&Identity> {
        self.node(content)?.identity.as_ref()
    }

    /// Sets by what files know a content, unless it is unknown. Returns whether nothing was set before.
    pub fn set_identity(&mut self, content: ContentId, identity: Identity) -> bool {
        let is_new = self.node(content).is_some_and(|node| node.identity.is_none());
        if is_new {
            self.nodes[content.node as usize].identity = Some(identity);
        }
        is_new
    }

    /// The owner of the sequence that computed a content.
    pub fn owner(&self, content: ContentId) -> Owner {
        self.node(content)?.owner
    }

    /// The state slot that holds the state after a content.
    pub fn checkpoint(&self, content: ContentId) -> Option<u32> {
        self.node(content)?.checkpoint
    }

    /// Sets the state slot that holds the state after a content. False if the content is unknown or already has one.
    pub fn set_checkpoint(&mut self, content: ContentId, slot: u32) -> bool {
        let is_free = self.node(content).is_some_and(|node| node.checkpoint.is_none());
        if is_free {
            self.nodes[content.node as usize].checkpoint = Some(slot);
        }
        is_free
    }

    pub fn forget_checkpoint(&mut self, content: ContentId) {
        if self.node(content).is_some() {
            self.nodes[content.node as usize].checkpoint = None;
        }
    }

    fn node(&self, content: ContentId) -> Option<&Node> {
        self.nodes.get(content.node as usize).filter(|node| node.id == content.id)
    }
}
