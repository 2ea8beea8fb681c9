//! [`Progress`]: the counter that a watchdog reads while a step computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A count of finished pieces of work, which grows as long as an engine computes. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Reads the count. The reader sees everything that was written before the counted pieces ended.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts one finished piece of work.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }
}
