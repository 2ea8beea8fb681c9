//! State slots: of running sequences, free ones, and checkpoints.
//!
//! A checkpoint is the state behind a content of the prefix cache, from which another sequence can go on. Slots that no sequence needs hold
//! checkpoints, the least recently used one makes room.
//!
//! The copies of a step run side by side, so nothing may be copied over a slot that another copy of the step reads. A checkpoint that a
//! step reads is therefore kept until the next step is planned.

use crate::lru::{Lru, Owner};
use crate::prefix_cache::{ContentId, ROOT};

#[derive(Debug)]
pub struct StateSlots {
    free: Vec<u32>,
    /// Checkpoints that the step being planned does not read.
    kept: Lru,
    /// Those that it reads.
    read: Vec<u32>,
    content: Vec<ContentId>, // [num_slots] of each checkpoint, else ROOT
    owner: Vec<Owner>,       // [num_slots] of each checkpoint: whose sequence computed it
    reused: Vec<bool>,       // [num_slots] whether a sequence went on from the checkpoint
}

impl StateSlots {
    pub fn new(num_slots: usize) -> Self {
        Self {
            free: (0..num_slots as u32).rev().collect(),
            kept: Lru::new(num_slots),
            read: Vec::new(),
            content: vec![ROOT; num_slots],
            owner: vec![None; num_slots],
            reused: vec![false; num_slots],
        }
    }

    /// Another step is planned.
    pub fn begin_step(&mut self) {
        for slot in self.read.drain(..) {
            if self.content[slot as usize] == ROOT {
                self.free.push(slot);
            } else {
                self.kept.push(slot, self.owner[slot as usize]);
            }
        }
    }

    /// A slot that nobody uses. If there is none, that of the least recently used checkpoint, with the content that loses it.
    pub fn allocate(&mut self) -> Option<(u32, Option<ContentId>)> {
        if let Some(slot) = self.free.pop() {
            return Some((slot, None));
        }
        let slot = self.kept.pop()?;
        Some((slot, Some(std::mem::replace(&mut self.content[slot as usize], ROOT))))
    }

    pub fn release(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "state slot {slot} is released twice");
        self.free.push(slot);
    }

    /// A slot becomes the checkpoint of a content.
    pub fn keep(&mut self, slot: u32, content: ContentId, owner: Owner) {
        (self.content[slot as usize], self.reused[slot as usize]) = (content, false);
        self.owner[slot as usize] = owner;
        self.kept.push(slot, owner);
    }

    /// The step being planned copies a checkpoint.
    pub fn read(&mut self, slot: u32) {
        self.reused[slot as usize] = true;
        if self.kept.contains(slot) {
            self.kept.take(slot);
            self.read.push(slot);
        }
    }

    /// A checkpoint becomes the state of a sequence.
    pub fn take_over(&mut self, slot: u32) {
        self.content[slot as usize] = ROOT;
        if self.kept.contains(slot) {
            self.kept.take(slot);
        } else {
            self.read.retain(|&read| read != slot);
        }
    }

    /// A content lost its checkpoint.
    pub fn forget(&mut self, slot: u32) {
        self.content[slot as usize] = ROOT;
        if self.kept.contains(slot) {
            self.kept.take(slot);
            self.free.push(slot);
        }
    }

    pub fn was_reused(&self, slot: u32) -> bool {
        self.reused[slot as usize]
    }

    /// Panics unless each slot is in `held`, free or a checkpoint, and each checkpoint is that of a content by `checkpoint_of`.
    #[cfg(test)]
    pub fn check(&self, held: impl Iterator<Item = u32>, checkpoint_of: impl Fn(ContentId) -> Option<u32>) {
        for slot in self.kept.iter() {
            assert_eq!(checkpoint_of(self.content[slot as usize]), Some(slot), "a checkpoint without its content");
        }
        let mut slots: Vec<u32> = held.chain(self.free.iter().chain(&self.read).copied()).chain(self.kept.iter()).collect();
        slots.sort_unstable();
        assert!(slots.iter().copied().eq(0..self.content.len() as u32), "state slots: {slots:?}");
    }

    #[cfg(test)]
    pub fn num_checkpoints(&self) -> usize {
        self.kept.len() + self.read.len()
    }
}
