//! State slots: those of running sequences, free ones, and checkpoints.
//!
//! A checkpoint is the recurrent state after a content of the prefix cache, from which another sequence can continue. Slots that no
//! sequence needs hold checkpoints. The least recently used one is evicted first.
//!
//! The copies of a step run in parallel, so no copy may overwrite a slot that another copy of the step reads. A checkpoint that a step
//! reads is therefore kept until the next step is planned.

use crate::lru::{Lru, Owner};
use crate::prefix_cache::{ContentId, ROOT};

#[derive(Debug)]
pub struct StateSlots {
    free: Vec<u32>,
    /// Checkpoints that the step being planned does not read.
    kept: Lru,
    /// Checkpoints that the step being planned reads.
    read: Vec<u32>,
    content: Vec<ContentId>, // [num_slots] content of each checkpoint, or ROOT
    owner: Vec<Owner>,       // [num_slots] owner of the sequence that computed the checkpoint
    reused: Vec<bool>,       // [num_slots] whether a sequence continued from the checkpoint
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

    /// Begins planning a step: the checkpoints that the last step read may be evicted again.
    pub fn begin_step(&mut self) {
        for slot in self.read.drain(..) {
            if self.content[slot as usize] == ROOT {
                self.free.push(slot);
            } else {
                self.kept.push(slot, self.owner[slot as usize]);
            }
        }
    }

    /// Allocates a free slot. If none is free, takes the slot of the least recently used checkpoint and returns the content that loses it.
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

    /// Makes a slot the checkpoint of a content.
    pub fn keep(&mut self, slot: u32, content: ContentId, owner: Owner) {
        (self.content[slot as usize], self.reused[slot as usize]) = (content, false);
        self.owner[slot as usize] = owner;
        self.kept.push(slot, owner);
    }

    /// Marks a checkpoint as read by the step being planned.
    pub fn read(&mut self, slot: u32) {
        self.reused[slot as usize] = true;
        if self.kept.contains(slot) {
            self.kept.take(slot);
            self.read.push(slot);
        }
    }

    /// Turns a checkpoint into a sequence's own state.
    pub fn take_over(&mut self, slot: u32) {
        self.content[slot as usize] = ROOT;
        if self.kept.contains(slot) {
            self.kept.take(slot);
        } else {
            self.read.retain(|&read| read != slot);
        }
    }

    /// Forgets a content's checkpoint.
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

    /// Checks that each slot is in `held`, free or a checkpoint, and that `checkpoint_of` names a content for each checkpoint; panics
    /// otherwise.
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
