//! [`Permit`]: the right to compile a grammar, which limits how many compile at once.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub struct Permits {
    most: usize,
    taken: Mutex<usize>,
    returned: Condvar,
}

impl Permits {
    /// A pool of `most` permits.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default(), returned: Condvar::new() }
    }
}

/// A permit to compile. Returned to its pool on drop.
pub struct Permit(Arc<Permits>);

impl Permit {
    /// Waits for a permit. `None` if the timeout ends first.
    pub fn acquire(permits: &Arc<Permits>, timeout: Duration) -> Option<Self> {
        let taken = permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = permits.returned.wait_timeout_while(taken, timeout, |taken| *taken >= permits.most);
        let (mut taken, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() {
            return None;
        }
        *taken += 1;
        Some(Self(permits.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.returned.notify_one();
    }
}
