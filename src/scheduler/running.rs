//! The running sequences in order of admission, and their sequence slots in the engine.

use std::collections::VecDeque;

use crate::sequence::Sequence;

#[derive(Debug)]
pub struct Running {
    sequences: Vec<Sequence>, // ascending by id
    free_engine_slots: VecDeque<u32>,
    max_running: usize,
}

impl Running {
    pub fn new(max_running: usize) -> Self {
        Self { sequences: Vec::with_capacity(max_running), free_engine_slots: (0..max_running as u32).collect(), max_running }
    }

    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= self.max_running
    }

    /// Whether there is a place beyond those reserved for requests that run nothing. If fewer than 4 sequences may run, nothing is
    /// reserved.
    pub fn has_unreserved(&self) -> bool {
        let reserved = if self.max_running < 4 { 0 } else { self.max_running.div_ceil(8) };
        self.len() + reserved < self.max_running
    }

    /// Finds a sequence by its id. None if the sequence has ended or was cancelled.
    pub fn get(&self, id: u64) -> Option<&Sequence> {
        self.position(id).map(|index| &self.sequences[index])
    }

    /// Finds a sequence by its id. None if the sequence has ended or was cancelled.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Sequence> {
        self.position(id).map(|index| &mut self.sequences[index])
    }

    /// Removes a sequence and frees its sequence slot. The caller releases its cache.
    pub fn remove(&mut self, id: u64) -> Option<Sequence> {
        let sequence = self.sequences.remove(self.position(id)?);
        self.free_engine_slots.push_back(sequence.sequence_slot());
        Some(sequence)
    }

    /// Adds the youngest sequence and assigns a sequence slot to it. A slot must be free.
    pub fn push(&mut self, mut sequence: Sequence) {
        debug_assert!(self.sequences.last().is_none_or(|last| last.id < sequence.id), "sequences are numbered as they are admitted");
        let Some(slot) = self.free_engine_slots.pop_front() else { unreachable!("fewer sequences run than there are engine slots") };
        sequence.assign_engine_slot(slot);
        self.sequences.push(sequence);
    }

    pub fn youngest(&self) -> Option<u64> {
        self.sequences.last().map(|sequence| sequence.id)
    }

    pub fn youngest_mut(&mut self) -> Option<&mut Sequence> {
        self.sequences.last_mut()
    }

    pub fn youngest_cancelled(&self) -> Option<u64> {
        self.sequences.iter().rev().find(|sequence| sequence.is_cancelled()).map(|sequence| sequence.id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.sequences.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.sequences.iter_mut()
    }

    /// Removes all sequences without freeing their sequence slots: nothing may run afterwards.
    pub fn drain(&mut self) -> impl Iterator<Item = Sequence> {
        self.sequences.drain(..)
    }

    fn position(&self, id: u64) -> Option<usize> {
        // Ids ascend, so this is the largest possible index, and the exact one if no sequence in between has ended.
        let most = usize::try_from(id.checked_sub(self.sequences.first()?.id)?).ok()?;
        if self.sequences.get(most).is_some_and(|sequence| sequence.id == id) {
            return Some(most);
        }
        let end = most.min(self.sequences.len());
        self.sequences[..end].binary_search_by_key(&id, |sequence| sequence.id).ok()
    }

    /// Panics unless each sequence slot either belongs to one sequence or is free.
    #[cfg(test)]
    pub fn check(&self) {
        let mut slots: Vec<u32> = self.iter().map(Sequence::sequence_slot).chain(self.free_engine_slots.iter().copied()).collect();
        slots.sort_unstable();
        assert!(slots.iter().copied().eq(0..self.max_running as u32), "engine slots: {slots:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{accepted, sequence};

    #[test]
    fn a_sequence_is_found_by_its_id_until_it_is_removed_and_the_order_stays() {
        let mut running = Running::new(3);
        for id in [2, 5, 9] {
            let mut sequence = accepted(sequence(vec![1], 1));
            sequence.id = id;
            running.push(sequence);
        }
        assert!(running.is_full());
        assert_eq!(running.get_mut(5).map(|sequence| sequence.id), Some(5));
        let slot = running.remove(5).unwrap().sequence_slot();
        assert!(running.get(5).is_none() && running.remove(5).is_none() && !running.is_full());
        assert_eq!(running.iter().map(|sequence| sequence.id).collect::<Vec<_>>(), [2, 9]);
        assert_eq!(running.youngest(), Some(9));
        running.check();
        assert!(running.iter().all(|sequence| sequence.sequence_slot() != slot));
    }
}
