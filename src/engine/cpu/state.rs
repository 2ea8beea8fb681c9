//! The recurrent state of sequences: one state slot each, as many floats per layer as the model needs.

use std::ops::Range;

use crate::Batch;

pub struct StateStore {
    num_layers: usize,
    width: usize,
    floats: Vec<f32>, // [num_slots, num_layers, width]
}

impl StateStore {
    /// `width`: floats per sequence and layer; 0 for models without recurrent state, which take no memory. None: there is not enough.
    pub fn new(num_slots: usize, num_layers: usize, width: usize) -> Option<Self> {
        let len = num_slots.checked_mul(num_layers)?.checked_mul(width)?;
        let mut floats = Vec::new();
        floats.try_reserve_exact(len).ok()?;
        floats.resize(len, 0.0);
        Some(Self { num_layers, width, floats })
    }

    fn slot(&self, slot: u32) -> Range<usize> {
        let size = self.num_layers * self.width;
        slot as usize * size..(slot as usize + 1) * size
    }

    /// A sequence's state in one layer, [width].
    pub fn layer_mut(&mut self, slot: u32, layer: usize) -> &mut [f32] {
        let from = self.slot(slot).start + layer * self.width;
        &mut self.floats[from..from + self.width]
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
