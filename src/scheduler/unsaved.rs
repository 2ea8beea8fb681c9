//! The contents of the prefix cache that are still to be saved to files.

use std::collections::VecDeque;

use crate::prefix_cache::ContentId;
use tiers::Root;

/// What is to be saved of a content, if the cache still has it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToSave {
    Blocks(ContentId),
    /// The recurrent state behind it.
    State(ContentId),
}

/// A queue of what is to be saved. If it is full, the oldest leaves it.
#[derive(Debug)]
pub struct Unsaved {
    root: Root,
    queue: VecDeque<ToSave>,
    most: usize,
}

impl Unsaved {
    /// `root`: what the identities of first blocks begin with. `most`: the longest queue.
    pub fn new(root: Root, most: usize) -> Self {
        Self { root, queue: VecDeque::new(), most }
    }

    pub fn root(&self) -> Root {
        self.root
    }

    pub fn push(&mut self, item: ToSave) {
        if self.queue.len() >= self.most {
            self.queue.pop_front();
        }
        self.queue.push_back(item);
    }

    pub fn pop(&mut self) -> Option<ToSave> {
        self.queue.pop_front()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}
