//! [`DeviceSlots`]: what the device holds about sequence slots, so that a decode step sends only what has changed.

use super::batch::{Changes, encode};
use super::sys;
use crate::check::CheckedBatch;
use crate::{Batch, CacheGroup, Input, KvCapacity};

/// The contents of a slot on the device.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    /// The tokens in the cache. None if unknown.
    length: Option<u32>,
    /// How far the next position lies behind the number of tokens.
    lag: u32,
    state_slot: u32,
    tables: Vec<Vec<u32>>, // [num_groups]
}

/// The part of a row that stays the same from one decode step to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    slot: u32,
    samples: bool,
    num_logprobs: i32,
}

/// A mirror of the device's slots and of its rows, which the latest decode step used.
pub struct DeviceSlots {
    groups: Vec<CacheGroup>,
    block_size: usize,
    slots: Vec<Known>,
    rows: Vec<Row>,
    /// Whether the rows have moved on since the latest step, so that they may stand for the next one.
    is_current: bool,
    /// Whether rows are sampled, so that slots move on.
    samples: bool,
    /// Whether positions may lie behind the number of tokens.
    may_lag: bool,
    changes: Changes,
}

impl DeviceSlots {
    /// `samples`: the engine has a head. `may_lag`: rows of the model may share positions.
    pub fn new(kv: &KvCapacity, max_slots: usize, samples: bool, may_lag: bool) -> Self {
        let unknown = Known { tables: vec![Vec::new(); kv.groups.len()], ..Known::default() };
        Self {
            groups: kv.groups.clone(),
            block_size: kv.block_size,
            slots: vec![unknown; max_slots],
            rows: Vec::new(),
            is_current: false,
            samples,
            may_lag,
            changes: Changes::default(),
        }
    }

    /// Where the rows of the latest step came from: `PEN_FROM_*`.
    #[cfg(test)]
    pub fn source(&self) -> u32 {
        self.changes.source
    }

    /// Records that the device's slots and rows may hold anything, because a step failed.
    pub fn forget(&mut self) {
        self.is_current = false;
        self.rows.clear();
        for slot in &mut self.slots {
            slot.length = None;
            slot.tables.iter_mut().for_each(Vec::clear);
        }
    }

    /// Compares a batch with what the device holds, and records that the device holds what follows the batch's step.
    pub fn follow(&mut self, batch: CheckedBatch) -> &Changes {
        self.changes.rows.clear();
        self.changes.tables.clear();
        self.changes.blocks.clear();
        let was_current = std::mem::replace(&mut self.is_current, false);
        if !self.is_decode(&batch) {
            self.changes.source = sys::PEN_FROM_ARRAYS;
            return &self.changes;
        }
        let mut is_known = was_current && self.rows.len() == batch.num_seqs();
        let mut sampled = batch.sampled_rows.iter().enumerate().peekable();
        for i in 0..batch.num_seqs() {
            let k = sampled.next_if(|(_, row)| **row as usize == i).map(|(k, _)| k);
            let num_logprobs = k.and_then(|k| batch.num_logprobs(k)).map_or(-1, |n| n as i32);
            let row = Row { slot: batch.sequence_slots[i], samples: k.is_some(), num_logprobs };
            is_known &= self.follow_row(&batch, i, row);
        }
        self.rows.truncate(batch.num_seqs());
        // With masks, a step leaves its rows' masks behind.
        self.is_current = !batch.sample_later;
        self.changes.source = if is_known { sys::PEN_FROM_SLOTS } else { sys::PEN_FROM_CHANGES };
        &self.changes
    }

    /// Whether each sequence has one row, which continues it and lies where its block tables say.
    fn is_decode(&self, batch: &Batch) -> bool {
        let continues = |i: usize| {
            let index = batch.context_lens[i] as usize - 1;
            let place = |table: &[u32]| table[index / self.block_size] as usize * self.block_size + index % self.block_size;
            (self.may_lag || batch.positions[i] as usize == index)
                && (0..self.groups.len()).all(|group| place(batch.block_table(group, i)) == batch.places(group)[i] as usize)
        };
        let is_plain = batch.token_types.is_empty() && batch.grid_positions.is_empty();
        self.samples && batch.num_tokens() == batch.num_seqs() && is_plain && (0..batch.num_seqs()).all(continues)
    }

    /// Lists the changes of row `i`. Returns whether the device knows all about the row.
    fn follow_row(&mut self, batch: &Batch, i: usize, row: Row) -> bool {
        let (length, position, first_table) = (batch.context_lens[i] - 1, batch.positions[i], self.changes.tables.len());
        let lag = length - position;
        let before = self.rows.get(i).copied();
        let (steps, room) = (batch.loop_steps.max(1), batch.rooms.get(i).copied().unwrap_or(length + 1));
        let slot = &mut self.slots[row.slot as usize];
        let state_slot = batch.state_slots.get(i).copied().unwrap_or(0);
        let is_new = before.is_none_or(|before| before.slot != row.slot) || slot.length != Some(length);
        for (group, table) in slot.tables.iter_mut().enumerate() {
            let first = self.groups[group].first_block(length as usize, self.block_size);
            let now = &batch.block_table(group, i)[..(room as usize).div_ceil(self.block_size)];
            let same = first + (first..now.len()).take_while(|&at| table.get(at) == Some(&now[at])).count();
            table.resize(now.len(), 0);
            if same < now.len() {
                table[same..].copy_from_slice(&now[same..]);
                let (count, at) = ((now.len() - same) as u32, self.changes.blocks.len() as u32);
                self.changes.tables.push(sys::pen_table { group: group as u32, first: same as u32, count, at });
                self.changes.blocks.extend_from_slice(&now[same..]);
            }
        }
        let num_tables = self.changes.tables.len() - first_table;
        let is_known = !is_new
            && before == Some(row)
            && num_tables == 0
            && slot.lag == lag
            && slot.state_slot == state_slot
            && batch.inputs[i] == Input::Sampled(row.slot);
        // A row without room stays where it is.
        let ends = length + steps;
        (slot.length, slot.lag, slot.state_slot) = ((room == ends).then_some(ends), lag, state_slot);
        self.changes.rows.push(sys::pen_row {
            slot: row.slot,
            input: encode(batch.inputs[i]),
            num_logprobs: row.num_logprobs,
            samples: u32::from(row.samples),
            is_new: u32::from(is_new),
            length,
            room,
            position,
            state_slot,
            first_table: first_table as u32,
            num_tables: num_tables as u32,
        });
        match self.rows.get_mut(i) {
            Some(known) => *known = row,
            None => self.rows.push(row),
        }
        is_known
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
