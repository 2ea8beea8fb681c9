//! Wakes threads that wait for memory, when a request has ended or a model was loaded or unloaded.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub struct Notifier {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Notifier {
    fn rung(&self) -> MutexGuard<'_, u64> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of rings so far. Read it before checking the condition that you wait for, so that no ring is missed.
    pub fn count(&self) -> u64 {
        *self.rung()
    }

    pub fn ring(&self) {
        *self.rung() += 1;
        self.changed.notify_all();
    }

    /// Waits until there were more than `seen` rings, but not longer than `patience`.
    pub fn wait(&self, seen: u64, patience: Duration) {
        let rung = self.rung();
        drop(self.changed.wait_timeout_while(rung, patience, |rung| *rung <= seen));
    }
}
