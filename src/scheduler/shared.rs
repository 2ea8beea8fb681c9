//! State that the handles and the engine thread share, besides the command channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::channel::EventSender;
use crate::event::Event;

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
    alive: AtomicBool,
    /// Whether the device is lost or stuck, so that only a new process helps.
    lost: AtomicBool,
    /// Clients that the watchdog tells if the engine thread cannot. Kept only if a watchdog runs.
    clients: Mutex<Vec<Weak<EventSender>>>,
    taken: Mutex<QueueUsage>,
    num_active: AtomicUsize,
    /// Sizes of the KV cache: in use, backed, and the most that can be backed [bytes].
    cache_bytes: [AtomicU64; 3],
    most: QueueSize,
}

impl Shared {
    pub fn new(most: QueueSize) -> Self {
        Self {
            alive: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            clients: Mutex::default(),
            taken: Mutex::default(),
            num_active: AtomicUsize::new(0),
            cache_bytes: Default::default(),
            // Every sequence passes through the queue, so a bound of 0 would refuse them all.
            most: QueueSize { places: most.places.max(1), tokens: most.tokens.max(1) },
        }
    }

    pub fn num_active(&self) -> usize {
        self.num_active.load(Ordering::Acquire)
    }

    pub fn set_cache_bytes(&self, bytes: [u64; 3]) {
        self.cache_bytes.iter().zip(bytes).for_each(|(shown, bytes)| shown.store(bytes, Ordering::Relaxed));
    }

    pub fn cache_bytes(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| self.cache_bytes[i].load(Ordering::Relaxed))
    }

    /// Counts a sequence that was handed in.
    pub fn add_active(&self) {
        self.num_active.fetch_add(1, Ordering::AcqRel);
    }

    pub fn remove_active(&self) {
        self.num_active.fetch_sub(1, Ordering::AcqRel);
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

    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    /// Refuses new sequences from now on.
    pub fn close(&self) {
        self.alive.store(false, Ordering::Release);
    }

    pub fn lose(&self) {
        self.lost.store(true, Ordering::Release);
        self.close();
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Adds a client to the list for [`tell_all`](Self::tell_all). The list holds the active clients, and about as many again that have
    /// ended.
    pub fn add_client(&self, events: &Arc<EventSender>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= 2 * self.num_active() + 16 {
            clients.retain(|client| client.strong_count() > 0);
        }
        clients.push(Arc::downgrade(events));
    }

    #[cfg(test)]
    pub fn num_clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Sends the last event to every client, from outside the engine thread.
    pub fn tell_all(&self, last: &Event) {
        let clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        clients.iter().filter_map(Weak::upgrade).for_each(|client| client.send(last.clone()));
    }
}
