//! The scheduler's part of the exchange between the prefix cache and its files (`disk_tier.rs`).

use super::Scheduler;
use crate::disk_tier::{DiskTier, SavedPrefixes};
use crate::sequence::Sequence;
use engine::EngineError;

impl Scheduler {
    /// Gives the prefix cache files, if the engine's cache can leave it.
    pub fn save_prefixes(&mut self, saved: SavedPrefixes) {
        self.disk = DiskTier::new(saved, &*self.engine, &mut self.sequences.blocks);
    }

    /// Takes a new sequence, which first waits for files if they hold its prefix.
    pub fn push(&mut self, sequence: Sequence) {
        let Some(disk) = &mut self.disk else { return self.queue(sequence) };
        if let Some(sequence) = disk.take(sequence, &mut self.sequences.blocks) {
            self.queue(sequence);
        }
    }

    /// Exchanges contents with the files, between two steps.
    pub(super) fn exchange(&mut self) -> Result<(), EngineError> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        disk.save(&*self.engine, &mut self.sequences.blocks)?;
        let ready = disk.load(&mut *self.engine, &mut self.sequences, &mut self.cache_size)?;
        ready.into_iter().for_each(|sequence| self.queue(sequence));
        Ok(())
    }

    /// Whether sequences wait for files, or contents wait to be saved.
    pub(super) fn is_exchanging(&self) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.has_work(&self.sequences.blocks))
    }

    /// Waits briefly for files if there is nothing else to do.
    pub(super) fn wait_for_files(&mut self) {
        if let Some(disk) = self.disk.as_ref().filter(|_| self.sequences.is_empty() && self.in_flight.is_empty()) {
            disk.wait();
            // Waiting for files is not a hang.
            self.num_turns += 1;
        }
    }

    /// Updates the gauges of the load, with the sequences that wait for files.
    pub(super) fn show_load(&self) {
        self.sequences.show_load(self.disk.as_ref().map_or(0, DiskTier::num_waiting));
    }

    /// Saves what waits to be saved, before the engine ends. Gives up after a while.
    pub fn finish_saving(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.finish(&*self.engine, &mut self.sequences.blocks);
        }
    }
}
