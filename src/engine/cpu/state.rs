//! The recurrent state of sequences: one state slot each, as many floats in each layer as it needs.

use std::ops::Range;

use crate::Batch;

pub struct StateStore {
    /// Where each layer's state begins in a slot. The last entry is the length of a slot.
    starts: Vec<usize>,
    floats: Vec<f32>, // [num_slots][layer][its width]
}

impl StateStore {
    /// `widths`: floats per sequence in each layer; models without recurrent state take no memory. None: there is not enough.
    pub fn new(num_slots: usize, widths: impl Iterator<Item = usize>) -> Option<Self> {
        let mut starts = vec![0usize];
        for width in widths {
            starts.push(starts.last()?.checked_add(width)?);
        }
        let len = num_slots.checked_mul(*starts.last()?)?;
        let mut floats = Vec::new();
        floats.try_reserve_exact(len).ok()?;
        floats.resize(len, 0.0);
        Some(Self { starts, floats })
    }

    fn size(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
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

    /// Prepares the step of a batch that passed `Limits::check`: copies, then zeros for sequences that begin.
    pub fn begin_step(&mut self, batch: &Batch) {
        for &(from, to) in &batch.state_copies {
            let (from, to) = (self.slot(from), self.slot(to));
            self.floats.copy_within(from, to.start);
        }
        for (i, &slot) in batch.state_slots.iter().enumerate() {
            if batch.positions[batch.rows(i).start] == 0 {
                let slot = self.slot(slot);
                self.floats[slot].fill(0.0);
            }
        }
    }
}
