//! What the handles and the engine thread share besides the command channel.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender};

use crate::event::Event;

#[derive(Debug)]
pub struct Shared {
    alive: AtomicBool,
    /// Only a new process helps.
    lost: AtomicBool,
    /// Clients to tell when the engine thread cannot. Kept only if a watchdog runs.
    clients: Mutex<Vec<WeakUnboundedSender<Event>>>,
    /// Places of the queue that are taken.
    num_places: AtomicUsize,
    num_active: AtomicUsize,
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
            num_places: AtomicUsize::new(0),
            num_active: AtomicUsize::new(0),
            max_waiting,
        }
    }

    pub fn num_active(&self) -> usize {
        self.num_active.load(Ordering::Acquire)
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

    /// Takes places in the queue. False if there are not as many.
    pub fn take_places(&self, count: usize) -> bool {
        let below_bound = |taken: usize| taken.checked_add(count).filter(|&sum| sum <= self.max_waiting);
        self.num_places.fetch_update(Ordering::AcqRel, Ordering::Acquire, below_bound).is_ok()
    }

    pub fn is_full(&self) -> bool {
        self.num_places.load(Ordering::Acquire) >= self.max_waiting
    }

    pub fn give_places_back(&self, count: usize) {
        self.num_places.fetch_sub(count, Ordering::AcqRel);
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
