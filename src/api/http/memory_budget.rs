//! A budget of memory that the bodies of all requests share. A body that does not fit is refused until others are done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::error::{ApiError, Kind};
use super::metrics;

/// Bodies that take no more than this may use the last part of the budget, so that a few large ones cannot shut out all others. In bytes.
const SMALL: usize = 1 << 20;
/// The part of the budget that is kept for small bodies: one in this many.
const KEPT: usize = 8;

/// How often freed memory is looked for. The allocator keeps freed pages for one second, in case they are needed again.
const TICK: Duration = Duration::from_millis(700);
/// The ticks for which memory is given back after a large body: the allocator gives back a part of it at a time.
const TICKS: usize = 8;
/// The allocator takes blocks of this size from the system's pages, and looks for pages to give back when one is freed. In bytes.
const PAGES: usize = 32 << 20;

pub struct MemoryBudget {
    max: usize,
    used: AtomicUsize,
    /// The ticks left for which memory is given back.
    ticks: AtomicUsize,
}

impl MemoryBudget {
    /// `max`: in bytes.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0), ticks: AtomicUsize::new(0) })
    }

    /// Gives the memory of large bodies back to the system after they are freed. Without this, an idle server would keep it: the allocator
    /// gives back pages only while it is in use. Never completes.
    pub async fn give_back(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            if self.ticks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                drop(std::hint::black_box(Vec::<u8>::with_capacity(PAGES)));
            }
        }
    }

    /// A share of the budget, at first of nothing.
    pub fn share(self: &Arc<Self>) -> MemoryPermit {
        MemoryPermit { budget: self.clone(), bytes: 0, _along: None }
    }

    /// Takes `more` bytes for a body that then holds `whole`.
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

/// What one request holds of the budget, until dropped.
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    bytes: usize,
    /// What else is held as long.
    _along: Option<Arc<MemoryPermit>>,
}

impl MemoryPermit {
    /// Holds `bytes`, more or less than so far.
    pub fn set(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.bytes {
            self.budget.take(bytes - self.bytes, bytes)?;
            self.bytes = bytes;
        } else {
            self.shrink_to(bytes);
        }
        Ok(())
    }

    /// Holds what `other` holds, too.
    pub fn along(mut self, other: Arc<MemoryPermit>) -> Self {
        self._along = Some(other);
        self
    }

    /// Holds `bytes` at most.
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
