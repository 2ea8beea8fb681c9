//! Stores the recurrent state of sequences: one state slot per sequence, with as many floats per layer as the layer needs.

use std::ops::Range;

use super::simd::zeroed::Zeroed;
use crate::Batch;

pub struct StateStore {
    /// The start of each layer's state in a slot. The last entry is the length of a slot.
    starts: Vec<usize>,
    floats: Zeroed, // [num_slots][layer][its width]
}

impl StateStore {
    /// Allocates the states. `widths` holds the floats per sequence in each layer. Models without recurrent state take no memory. None if
    /// memory is short.
    pub fn new(num_slots: usize, widths: impl Iterator<Item = usize>) -> Option<Self> {
        let mut starts = vec![0usize];
        for width in widths {
            starts.push(starts.last()?.checked_add(width)?);
        }
        let len = num_slots.checked_mul(*starts.last()?)?;
        Some(Self { starts, floats: Zeroed::new(len)? })
    }

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
    }
}
