//! Block tables for callers that run batches without a scheduler. Each sequence starts once, and no block is shared.

use super::{Batch, EngineError, KvCapacity};

/// The block tables of some sequences, and the free blocks.
pub struct BlockTables {
    capacity: KvCapacity,
    free: Vec<u32>,
    held: Vec<HeldBlocks>, // [num_seqs * num_groups]
}

/// The blocks of one sequence in one group.
#[derive(Clone, Debug, Default)]
struct HeldBlocks {
    table: Vec<u32>,
    /// The number of leading entries whose blocks were given back.
    num_left: usize,
}

impl HeldBlocks {
    /// Gives back the blocks before block `first`.
    fn leave(&mut self, first: usize, free: &mut Vec<u32>) {
        for entry in &mut self.table[self.num_left..first] {
            free.push(std::mem::take(entry));
            self.num_left += 1;
        }
    }
}

impl BlockTables {
    pub fn new(capacity: KvCapacity, num_seqs: usize) -> Self {
        let held = vec![HeldBlocks::default(); num_seqs * capacity.groups.len()];
        Self { free: (0..capacity.num_blocks as u32).rev().collect(), held, capacity }
    }

    /// Gives back the blocks of a sequence that each group's window has left before `position`, where the sequence continues.
    pub fn give_back(&mut self, sequence: u32, position: usize) {
        let groups = self.capacity.groups.len();
        let held = self.held[sequence as usize * groups..][..groups].iter_mut();
        for (held, group) in held.zip(&self.capacity.groups) {
            held.leave(group.first_block(position, self.capacity.block_size), &mut self.free);
        }
    }

    /// Gives `to` a block for each block that `from` holds, and returns the copies to make as (from, to). `to` first gives back its own
    /// blocks.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if there are too few blocks.
    pub fn fork(&mut self, from: u32, to: u32) -> Result<Vec<(u32, u32)>, EngineError> {
        let (groups, mut copies) = (self.capacity.groups.len(), Vec::new());
        for group in 0..groups {
            let source = self.held[from as usize * groups + group].clone();
            let mut target = std::mem::take(&mut self.held[to as usize * groups + group]);
            let all = target.table.len();
            target.leave(all, &mut self.free);
            let mut table = vec![0; source.num_left];
            for &block in &source.table[source.num_left..] {
                let full = || EngineError::OutOfMemory(format!("{} KV blocks are too few", self.capacity.num_blocks));
                let own = self.free.pop().ok_or_else(full)?;
                table.push(own);
                copies.push((block, own));
            }
            self.held[to as usize * groups + group] = HeldBlocks { table, num_left: source.num_left };
        }
        Ok(copies)
    }

    /// Fills the places, tables and state slots of a batch that has everything else. `sequences` names the sequence of each run of rows. A
    /// sequence's state slot has the sequence's number. Gives back the blocks that each window has left before the first of the rows.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if there are too few blocks.
    pub fn place(&mut self, batch: &mut Batch, sequences: &[u32]) -> Result<(), EngineError> {
        let size = self.capacity.block_size;
        let rooms = if batch.rooms.is_empty() { batch.context_lens.clone() } else { batch.rooms.clone() };
        batch.max_blocks = rooms.iter().map(|&len| (len as usize).div_ceil(size)).max().unwrap_or(0);
        batch.slot_mapping.clear();
        batch.block_tables.clear();
        if self.capacity.has_state() {
            batch.state_slots = sequences.to_vec();
        }
        for (index, group) in self.capacity.groups.iter().enumerate() {
            for (i, &sequence) in sequences.iter().enumerate() {
                let indices = batch.indices(i);
                let held = &mut self.held[sequence as usize * self.capacity.groups.len() + index];
                held.leave(group.first_block(indices.start as usize, size), &mut self.free);
                let table = &mut held.table;
                while table.len() * size < rooms[i] as usize {
                    let all = || EngineError::OutOfMemory(format!("{} KV blocks are too few", self.capacity.num_blocks));
                    table.push(self.free.pop().ok_or_else(all)?);
                }
                batch.slot_mapping.extend(indices.map(|at| table[at as usize / size] * size as u32 + at % size as u32));
                let used = table.len().min(batch.max_blocks);
                batch.block_tables.extend_from_slice(&table[..used]);
                batch.block_tables.extend(std::iter::repeat_n(0, batch.max_blocks - used));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CacheGroup, CacheWindow};

    #[test]
    fn a_fork_has_blocks_of_its_own_for_what_the_windows_have_kept() {
        let windowed = CacheGroup { window: Some(CacheWindow::Sliding(4)) };
        let capacity = KvCapacity { groups: vec![CacheGroup::default(), windowed], ..KvCapacity::blocks(10, 4) };
        let mut tables = BlockTables::new(capacity, 2);
        let mut batch = Batch {
            cu_seqlens_q: vec![0, 12],
            context_lens: vec![12],
            positions: (0..12).collect(),
            inputs: (0..12).map(crate::Input::Token).collect(),
            ..Batch::default()
        };
        tables.place(&mut batch, &[0]).unwrap();
        tables.give_back(0, 11);
        let copies = tables.fork(0, 1).unwrap();
        assert_eq!(copies, [(0, 3), (1, 6), (2, 7), (4, 8), (5, 9)]);
        assert!(tables.fork(0, 1).is_ok(), "what the fork held before is free again");
    }

    #[test]
    fn each_group_has_blocks_of_its_own_and_gives_back_what_its_window_has_left() {
        let windowed = CacheGroup { window: Some(CacheWindow::Sliding(4)) };
        let capacity = KvCapacity { groups: vec![CacheGroup::default(), windowed], ..KvCapacity::blocks(8, 4) };
        let mut tables = BlockTables::new(capacity, 2);
        let batch = |positions: std::ops::Range<u32>| Batch {
            cu_seqlens_q: vec![0, positions.len() as u32],
            context_lens: vec![positions.end],
            positions: positions.clone().collect(),
            inputs: positions.map(crate::Input::Token).collect(),
            ..Batch::default()
        };
        let mut first = batch(0..6);
        tables.place(&mut first, &[1]).unwrap();
        assert_eq!((first.max_blocks, first.block_tables), (2, vec![0, 1, 2, 3]));
        assert_eq!(first.slot_mapping, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]);
        let mut second = batch(8..10);
        tables.place(&mut second, &[1]).unwrap();
        assert_eq!(second.block_tables, [0, 1, 4, 0, 3, 2], "block 2 is back and serves the end");
        let mut third = batch(10..26);
        assert!(matches!(tables.place(&mut third, &[1]), Err(EngineError::OutOfMemory(_))));
    }
}
