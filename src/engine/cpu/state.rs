//! Stores the recurrent state of sequences: one state slot per sequence, with as many floats per layer as the layer needs.
//!
//! A sequence with several sampled rows may go back behind a wrong draft. So the kernels keep its state after each of these rows but the
//! last one, and once the rows are sampled, the slot gets the state after the last row that counts.

use std::ops::Range;

use super::simd::attend::SequenceRows;
use super::simd::zeroed::Zeroed;
use crate::{Batch, Sampled};

/// The states of a sequence that a step keeps.
#[derive(Clone, Debug, Default)]
struct KeptStates {
    /// The number of the first one.
    first: usize,
    /// The sequence's rows before each of them.
    after: Vec<usize>,
}

pub struct StateStore {
    /// The start of each layer's state in a slot. The last entry is the length of a slot.
    starts: Vec<usize>,
    floats: Zeroed,        // [num_slots][layer][its width]
    kept_floats: Zeroed,   // [most kept states][layer][its width]
    kept: Vec<KeptStates>, // [num_seqs] of the latest batch
}

impl StateStore {
    /// Allocates the states. `widths` holds the floats per sequence in each layer, and `most_kept` is the most states that a step keeps.
    /// Models without recurrent state take no memory. None if memory is short.
    pub fn new(num_slots: usize, most_kept: usize, widths: impl Iterator<Item = usize>) -> Option<Self> {
        let mut starts = vec![0usize];
        for width in widths {
            starts.push(starts.last()?.checked_add(width)?);
        }
        let size = *starts.last()?;
        let [floats, kept_floats] = [num_slots, most_kept].map(|count| Zeroed::new(count.checked_mul(size)?));
        Some(Self { starts, floats: floats?, kept_floats: kept_floats?, kept: Vec::new() })
    }

    /// Floats per slot.
    fn size(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The floats per sequence in one layer.
    pub fn width(&self, layer: usize) -> usize {
        self.starts[layer + 1] - self.starts[layer]
    }

    fn slot(&self, slot: u32) -> Range<usize> {
        let size = self.size();
        slot as usize * size..(slot as usize + 1) * size
    }

    /// The bytes of a state slot, all layers.
    pub fn bytes(&self, slot: u32) -> Option<&[u8]> {
        self.floats.get(self.slot(slot)).map(bytemuck::cast_slice)
    }

    /// The bytes of a state slot, to write to.
    pub fn bytes_mut(&mut self, slot: u32) -> Option<&mut [u8]> {
        let slot = self.slot(slot);
        self.floats.get_mut(slot).map(bytemuck::cast_slice_mut)
    }

    /// A sequence's state in one layer.
    pub fn layer_mut(&mut self, slot: u32, layer: usize) -> &mut [f32] {
        let start = self.slot(slot).start;
        &mut self.floats[start + self.starts[layer]..start + self.starts[layer + 1]]
    }

    /// The states of several sequences in one layer, in the order of their slots. The slots must be distinct.
    pub fn layer_of(&mut self, slots: &[u32], layer: usize) -> Vec<&mut [f32]> {
        let (size, start, end) = (self.size(), self.starts[layer], self.starts[layer + 1]);
        let mut order: Vec<usize> = (0..slots.len()).collect();
        order.sort_unstable_by_key(|&i| slots[i]);
        let mut found: Vec<(usize, &mut [f32])> = Vec::with_capacity(slots.len());
        let (mut rest, mut skipped) = (&mut self.floats[..], 0);
        for i in order {
            let at = slots[i] as usize * size;
            let (_, from) = std::mem::take(&mut rest).split_at_mut(at + start - skipped);
            let (state, behind) = from.split_at_mut(end - start);
            (rest, skipped) = (behind, at + end);
            found.push((i, state));
        }
        found.sort_unstable_by_key(|(i, _)| *i);
        found.into_iter().map(|(_, state)| state).collect()
    }

    /// Prepares the step of a batch that passed `Limits::check`: copies states, then zeroes the states of new sequences.
    pub fn begin_step(&mut self, batch: &Batch) {
        for &(from, to) in &batch.state_copies {
            let (from, to) = (self.slot(from), self.slot(to));
            self.floats.copy_within(from, to.start);
        }
        for (i, &slot) in batch.state_slots.iter().enumerate() {
            if batch.begins(i) {
                let slot = self.slot(slot);
                self.floats[slot].fill(0.0);
            }
        }
        self.kept.clear();
        if self.kept_floats.is_empty() {
            return;
        }
        self.kept.resize(batch.num_seqs(), KeptStates::default());
        for (i, &row) in batch.sampled_seqs().zip(&batch.sampled_rows) {
            self.kept[i].after.push(row as usize + 1 - batch.rows(i).start);
        }
        let mut first = 0;
        for kept in &mut self.kept {
            kept.after.pop();
            kept.first = first;
            first += kept.after.len();
        }
    }

    /// The rows of a batch in passes, each with the numbers of its sequences. A sequence's state must be kept between two of its passes.
    pub fn passes(&self, sequences: &[SequenceRows]) -> Vec<(Vec<usize>, Vec<SequenceRows>)> {
        let most = self.kept.iter().map(|kept| kept.after.len()).max().unwrap_or(0);
        let rows_of = |pass: usize, i: usize| {
            let (all, after) = (sequences[i], self.kept.get(i).map_or(&[][..], |kept| &kept.after));
            let start = if pass == 0 { 0 } else { *after.get(pass - 1)? };
            let end = after.get(pass).copied().unwrap_or(all.num_rows);
            Some(SequenceRows { first_row: all.first_row + start, num_rows: end - start, ..all })
        };
        let pass = |pass| (0..sequences.len()).filter_map(|i| Some((i, rows_of(pass, i)?))).unzip();
        (0..=most).map(pass).collect()
    }

    /// The numbers of rows of sequence `i` after which its state is kept.
    pub fn kept_after(&self, i: usize) -> &[usize] {
        self.kept.get(i).map_or(&[], |kept| &kept.after)
    }

    /// State `k` that the step keeps of sequence `i`, in one layer.
    pub fn kept_mut(&mut self, (i, k): (usize, usize), layer: usize) -> &mut [f32] {
        let start = (self.kept[i].first + k) * self.size();
        &mut self.kept_floats[start + self.starts[layer]..start + self.starts[layer + 1]]
    }

    /// Keeps the state in `slot` as state `k` of sequence `i`, some floats of one layer. Does nothing unless the step keeps that state.
    pub fn keep(&mut self, (i, k): (usize, usize), slot: u32, layer: usize, place: Range<usize>) {
        if self.kept_after(i).len() > k {
            let from = self.slot(slot).start + self.starts[layer];
            let to = (self.kept[i].first + k) * self.size() + self.starts[layer];
            self.kept_floats[to + place.start..to + place.end].copy_from_slice(&self.floats[from + place.start..from + place.end]);
        }
    }

    /// Goes back to the state after the last row of each sequence that counts. `sampled`: the outcome of each sampled row.
    pub fn go_back(&mut self, batch: &Batch, sampled: &[Sampled]) {
        let mut num_counted = vec![0usize; self.kept.len()];
        for (i, _) in batch.sampled_seqs().zip(sampled).filter(|(i, sampled)| **sampled != Sampled::Skipped && *i < self.kept.len()) {
            num_counted[i] += 1;
        }
        let size = self.size();
        for (i, kept) in self.kept.iter().enumerate() {
            // without a kept state, all rows count
            if let Some(k) = num_counted[i].checked_sub(1).filter(|&k| k < kept.after.len()) {
                let (from, to) = ((kept.first + k) * size, batch.state_slots[i] as usize * size);
                self.floats[to..to + size].copy_from_slice(&self.kept_floats[from..from + size]);
            }
        }
    }
}
