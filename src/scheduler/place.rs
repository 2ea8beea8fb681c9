//! A request's place in the queue, and the tickets of its sequences.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::client::Client;
use crate::shared::Shared;

/// Identifies a request. A request that came later has a larger key.
pub type RequestKey = u64;

/// Where the sequences of one request wait.
///
/// Each of them takes a place in the queue until it is admitted, but all of them together take at most [`Shared::max_places`]. The others
/// wait behind those, in the request's own place. So a request with many prompts does not fill the queue, and an empty queue takes every
/// request, however many sequences it has.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    key: RequestKey,
    client: Client,
    /// Sequences that wait or are still to be handed in.
    num_waiting: AtomicUsize,
}

impl Place {
    /// `count` sequences have been admitted, or will never be.
    fn leave(&self, count: usize) {
        let before = self.num_waiting.fetch_sub(count, Ordering::AcqRel);
        let most = self.shared.max_places();
        self.shared.give_places_back(self.client.tenant, before.min(most) - (before - count).min(most));
    }
}

/// The tickets of a request that were not handed out yet.
#[derive(Debug)]
pub struct Tickets {
    place: Arc<Place>,
    left: usize,
}

impl Tickets {
    /// Tickets for the `count` sequences of a new request. None if the queue is full, or the client's part of it.
    pub fn take(shared: &Arc<Shared>, client: Client, count: usize) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        shared.take_places(client.tenant, count.min(shared.max_places())).then(|| {
            let key = NEXT.fetch_add(1, Ordering::Relaxed);
            Self { place: Arc::new(Place { shared: shared.clone(), key, client, num_waiting: AtomicUsize::new(count) }), left: count }
        })
    }

    /// None if all were handed out.
    pub fn next(&mut self) -> Option<Ticket> {
        self.left = self.left.checked_sub(1)?;
        self.place.shared.add_active();
        Some(Ticket { place: self.place.clone(), waiting: true })
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.place.leave(self.left);
    }
}

/// Counts one sequence: in the queue until it is admitted, and active until the ticket is dropped, wherever that happens.
#[derive(Debug)]
pub struct Ticket {
    place: Arc<Place>,
    waiting: bool,
}

impl Ticket {
    pub fn request(&self) -> RequestKey {
        self.place.key
    }

    pub fn client(&self) -> Client {
        self.place.client
    }

    /// The sequence no longer counts against the queue's bound, not even after a preemption.
    pub fn leave_queue(&mut self) {
        if std::mem::take(&mut self.waiting) {
            self.place.leave(1);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave_queue();
        self.place.shared.remove_active();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_at_most_an_eighth_of_the_queue_and_gives_it_back_as_its_sequences_leave() {
        let shared = Arc::new(Shared::new(16));
        let fits = |count| shared.take_places(None, count) && (shared.give_places_back(None, count), true).1;
        let mut large = Tickets::take(&shared, Client::default(), 5).unwrap();
        assert!(fits(14) && !fits(15), "two of sixteen places are taken");
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| large.next()).collect();
        assert_eq!((tickets.len(), shared.num_active()), (5, 5));
        tickets[..3].iter_mut().for_each(Ticket::leave_queue);
        assert!(!fits(15), "two still wait");
        tickets[3].leave_queue();
        assert!(fits(15) && !fits(16));
        tickets.clear();
        assert!(fits(16) && shared.num_active() == 0);
        drop(Tickets::take(&shared, Client::default(), 1000).unwrap());
        assert!(fits(16), "tickets that were never handed out");
        assert!(shared.take_places(None, 15));
        assert!(Tickets::take(&shared, Client::default(), 2).is_none() && Tickets::take(&shared, Client::default(), 1).is_some());
    }

    #[test]
    fn an_empty_queue_takes_every_request() {
        for max_waiting in [0, 1, 7, 512] {
            let shared = Arc::new(Shared::new(max_waiting));
            let mut tickets = Tickets::take(&shared, Client::default(), 10_000).unwrap();
            assert_eq!(std::iter::from_fn(|| tickets.next()).count(), 10_000);
        }
    }
}
