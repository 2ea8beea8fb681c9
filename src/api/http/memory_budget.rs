//! A memory budget that the bodies of all requests share. A body that does not fit is refused until other requests have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::{ApiError, Kind};
use super::metrics;

/// The largest body that may use the reserved part of the budget, so that a few large bodies cannot shut out all others [bytes].
const SMALL: usize = 1 << 20;
/// The reserved part of the budget for small bodies, as a divisor: one part in this many.
const KEPT: usize = 8;

/// How often freed memory is returned to the system. The allocator keeps freed pages for one second in case they are needed again.
const TICK: Duration = Duration::from_millis(700);
/// The number of ticks over which memory is returned after a large body, since the allocator returns only part of it at a time.
const TICKS: usize = 8;
/// A block size that the allocator takes directly from the system's pages. Freeing such a block makes the allocator look for pages to
/// return [bytes].
const PAGES: usize = 32 << 20;

pub struct MemoryBudget {
    max: usize,
    used: AtomicUsize,
    /// The remaining ticks in which memory is returned.
    ticks: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget of `max` bytes.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0), ticks: AtomicUsize::new(0) })
    }

    /// Returns the memory of freed large bodies to the system. Otherwise an idle server would keep it, because the allocator returns pages
    /// only while it is in use. Never completes.
    pub async fn give_back(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            if self.ticks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                drop(std::hint::black_box(Vec::<u8>::with_capacity(PAGES)));
            }
        }
    }

    /// Creates a permit for zero bytes of the budget.
    pub fn share(self: &Arc<Self>) -> MemoryPermit {
        MemoryPermit { budget: self.clone(), bytes: 0, _along: None }
    }

    /// Takes `more` bytes for a body that then holds `whole` bytes.
    fn take(&self, more: usize, whole: usize) -> Result<(), ApiError> {
        let max = if whole <= SMALL { self.max } else { self.max - self.max / KEPT };
        let grown = |used: usize| used.checked_add(more).filter(|used| *used <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).map_err(|_| {
            let message = "the bodies of the requests in flight take all the memory that the server has for them: try again later";
            ApiError::new(Kind::Overloaded, message)
        })?;
        metrics::http().body_bytes.add(more as i64);
        Ok(())
    }
}

/// A request's share of the budget, returned when dropped.
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    bytes: usize,
    /// Another permit that is held for as long as this one.
    _along: Option<Arc<MemoryPermit>>,
}

impl MemoryPermit {
    /// Sets the share to `bytes`, larger or smaller than before.
    pub fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes, bytes)?;
            self.bytes = bytes;
        } else {
            self.shrink_to(bytes);
        }
        Ok(())
    }

    /// Holds `other` for as long as this permit.
    pub fn along(mut self, other: Arc<MemoryPermit>) -> Self {
        self._along = Some(other);
        self
    }

    /// Reduces the share to at most `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        if less > SMALL {
            self.budget.ticks.store(TICKS, Ordering::Relaxed);
        }
        self.budget.used.fetch_sub(less, Ordering::Relaxed);
        metrics::http().body_bytes.sub(less as i64);
        self.bytes -= less;
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_fits_the_budget_and_returns_to_it() {
        let budget = MemoryBudget::new(64 << 20);
        let (mut large, mut other, mut small) = (budget.share(), budget.share(), budget.share());
        large.set(40 << 20).unwrap();
        assert_eq!(other.set(17 << 20).unwrap_err().kind, Kind::Overloaded, "an eighth is kept");
        other.set(16 << 20).unwrap();
        small.set(1 << 20).unwrap();
        assert!(small.set(2 << 20).is_err(), "it would not be small any more");
        assert_eq!(budget.used.load(Ordering::Relaxed), 57 << 20, "a refusal takes nothing");
        large.shrink_to(10 << 20);
        large.shrink_to(20 << 20);
        small.set(2 << 20).unwrap();
        assert_eq!(budget.used.load(Ordering::Relaxed), 28 << 20);
        drop((large, other, small));
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
