//! The queue of a model, which its handles and its engine threads share.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A tenant may hold at most this many times the queue's free room. So there is always a place for others: n tenants leave 1 / (8 n + 1) of
/// the queue free.
const TIMES_FREE: usize = 8;

/// An amount of queue room: sequences, and tokens of their prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSize {
    pub places: usize,
    pub tokens: usize,
}

impl QueueSize {
    pub fn plus(self, other: Self) -> Self {
        Self { places: self.places + other.places, tokens: self.tokens + other.tokens }
    }

    pub fn minus(self, other: Self) -> Self {
        Self { places: self.places - other.places, tokens: self.tokens - other.tokens }
    }
}

/// The bound of the queue that refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueLimit {
    Places,
    Tokens,
}

/// The queue room that is in use.
#[derive(Debug, Default)]
struct QueueUsage {
    all: QueueSize,
    /// The room that each tenant uses.
    by_tenant: HashMap<u64, QueueSize>,
}

#[derive(Debug)]
pub struct Shared {
    taken: Mutex<QueueUsage>,
    most: QueueSize,
}

impl Shared {
    pub fn new(most: QueueSize) -> Self {
        Self {
            taken: Mutex::default(),
            // Every sequence passes through the queue, so a bound of 0 would refuse them all.
            most: QueueSize { places: most.places.max(1), tokens: most.tokens.max(1) },
        }
    }

    /// The room that counts against the queue for a request whose waiting sequences need `room`: at most an eighth of the queue, but at
    /// least the tokens of the request's longest prompt. The rest is not counted.
    pub fn share(&self, room: QueueSize, longest: usize) -> QueueSize {
        QueueSize { places: room.places.min((self.most.places / 8).max(1)), tokens: room.tokens.min((self.most.tokens / 8).max(longest)) }
    }

    fn taken(&self) -> MutexGuard<'_, QueueUsage> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room in the queue.
    ///
    /// # Errors
    /// The queue has too little room for this tenant.
    pub fn take(&self, tenant: Option<u64>, room: QueueSize) -> Result<(), QueueLimit> {
        let mut taken = self.taken();
        self.check(&taken, tenant, room)?;
        taken.all = taken.all.plus(room);
        if let Some(tenant) = tenant.filter(|_| room != QueueSize::default()) {
            let held = taken.by_tenant.entry(tenant).or_default();
            *held = held.plus(room);
        }
        Ok(())
    }

    fn check(&self, taken: &QueueUsage, tenant: Option<u64>, room: QueueSize) -> Result<(), QueueLimit> {
        let held = tenant.map(|tenant| taken.by_tenant.get(&tenant).copied().unwrap_or_default());
        let fits = |room: usize, taken: usize, held: Option<usize>, most: usize| {
            let free = most.saturating_sub(taken);
            room <= free && held.is_none_or(|held| held + room <= TIMES_FREE.saturating_mul(free))
        };
        if !fits(room.places, taken.all.places, held.map(|held| held.places), self.most.places) {
            return Err(QueueLimit::Places);
        }
        // While no prompt waits, every request is accepted, so that the length of a prompt never makes it unservable.
        let fits_tokens = taken.all.tokens == 0 || fits(room.tokens, taken.all.tokens, held.map(|held| held.tokens), self.most.tokens);
        if fits_tokens { Ok(()) } else { Err(QueueLimit::Tokens) }
    }

    /// The bound that leaves no room for another request of this tenant, however small.
    pub fn full(&self, tenant: Option<u64>) -> Option<QueueLimit> {
        self.check(&self.taken(), tenant, QueueSize { places: 1, tokens: 1 }).err()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.taken().all == QueueSize::default()
    }

    pub fn give_back(&self, tenant: Option<u64>, room: QueueSize) {
        let mut taken = self.taken();
        taken.all = taken.all.minus(room);
        if let Some(tenant) = tenant
            && let Some(held) = taken.by_tenant.get_mut(&tenant)
        {
            *held = held.minus(room);
            if *held == QueueSize::default() {
                taken.by_tenant.remove(&tenant);
            }
        }
    }
}
