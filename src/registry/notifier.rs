//! Wakes threads that wait for room: a request has ended, or a model was loaded or unloaded.

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

    /// How often the notifier was rung. Read it before looking at what the notifier tells about, so that no ring is missed.
    pub fn count(&self) -> u64 {
        *self.rung()
    }

    pub fn ring(&self) {
        *self.rung() += 1;
        self.changed.notify_all();
    }

    /// Waits until the notifier has been rung more than `seen` times, at most for `patience`.
    pub fn wait(&self, seen: u64, patience: Duration) {
        let rung = self.rung();
        drop(self.changed.wait_timeout_while(rung, patience, |rung| *rung <= seen));
    }
}
