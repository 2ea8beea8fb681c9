//! Wakes threads that wait for room: a request has ended, or a model was loaded or unloaded.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Default)]
pub struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
}

impl Bell {
    fn rung(&self) -> MutexGuard<'_, u64> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the bell was rung. Read it before looking at what the bell tells about, so that no ring is missed.
    pub fn count(&self) -> u64 {
        *self.rung()
    }

    pub fn ring(&self) {
        *self.rung() += 1;
        self.changed.notify_all();
    }

    /// Waits until the bell has been rung more than `seen` times, at most for `patience`.
    pub fn wait(&self, seen: u64, patience: Duration) {
        let rung = self.rung();
        drop(self.changed.wait_timeout_while(rung, patience, |rung| *rung <= seen));
    }
}
