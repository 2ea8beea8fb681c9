//! What the handles and the engine thread share besides the command channel.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use crate::event::Event;

/// How many times the free places of the queue a tenant may hold. However many requests one has, others find a place: n tenants leave one
/// of 8 n + 1 free.
const TIMES_FREE: usize = 8;

/// Places of the queue that are taken.
#[derive(Debug, Default)]
struct Places {
    num_taken: usize,
    /// Those of each tenant.
    by_tenant: HashMap<u64, usize>,
}

#[derive(Debug)]
pub struct Shared {
    alive: AtomicBool,
    /// Only a new process helps.
    lost: AtomicBool,
    /// Clients to tell when the engine thread cannot. Kept only if a watchdog runs.
    clients: Mutex<Vec<WeakUnboundedSender<Event>>>,
    places: Mutex<Places>,
    num_active: AtomicUsize,
    /// Bytes of the KV cache: in use, with memory, and at most.
    cache_bytes: [AtomicU64; 3],
    max_waiting: usize,
}

impl Shared {
    pub fn new(max_waiting: usize) -> Self {
        // Every sequence passes through the queue, so a bound of 0 would refuse them all.
        let max_waiting = max_waiting.max(1);
        Self {
            alive: AtomicBool::new(true),
            lost: AtomicBool::new(false),
            clients: Mutex::default(),
            places: Mutex::default(),
            num_active: AtomicUsize::new(0),
            cache_bytes: Default::default(),
            max_waiting,
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

    /// Counts sequences that have come or gone.
    pub fn add_active(&self) {
        self.num_active.fetch_add(1, Ordering::AcqRel);
    }

    pub fn remove_active(&self) {
        self.num_active.fetch_sub(1, Ordering::AcqRel);
    }

    /// The most places that one request takes: an eighth of the queue.
    pub fn max_places(&self) -> usize {
        (self.max_waiting / 8).max(1)
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes places in the queue. False if there are not as many for this tenant.
    pub fn take_places(&self, tenant: Option<u64>, count: usize) -> bool {
        let mut places = self.places();
        if !self.has_room(&places, tenant, count) {
            return false;
        }
        places.num_taken += count;
        if let Some(tenant) = tenant.filter(|_| count > 0) {
            *places.by_tenant.entry(tenant).or_default() += count;
        }
        true
    }

    fn has_room(&self, places: &Places, tenant: Option<u64>, count: usize) -> bool {
        let num_free = self.max_waiting - places.num_taken;
        let num_held = |tenant| places.by_tenant.get(&tenant).copied().unwrap_or(0);
        count <= num_free && tenant.is_none_or(|tenant| num_held(tenant) + count <= TIMES_FREE.saturating_mul(num_free))
    }

    /// Whether there is no place for another request of this tenant.
    pub fn is_full(&self, tenant: Option<u64>) -> bool {
        !self.has_room(&self.places(), tenant, 1)
    }

    pub fn give_places_back(&self, tenant: Option<u64>, count: usize) {
        let mut places = self.places();
        places.num_taken -= count;
        if let Some(tenant) = tenant
            && let Some(num_held) = places.by_tenant.get_mut(&tenant)
        {
            *num_held -= count;
            if *num_held == 0 {
                places.by_tenant.remove(&tenant);
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

    /// Adds a client to the list of those to tell. The list holds the active ones, and at most as many again that have ended.
    pub fn add_client(&self, events: &UnboundedSender<Event>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= 2 * self.num_active() + 16 {
            clients.retain(|client| client.strong_count() > 0);
        }
        clients.push(events.downgrade());
    }

    #[cfg(test)]
    pub fn num_clients(&self) -> usize {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Sends every client's last event from outside the engine thread.
    pub fn tell_all(&self, last: &Event) {
        let clients = std::mem::take(&mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner));
        // A send fails if the client has gone, and then there is nobody to tell.
        clients.iter().filter_map(WeakUnboundedSender::upgrade).for_each(|client| drop(client.send(last.clone())));
    }
}
