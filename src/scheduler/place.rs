//! A request's place in the queue, and the tickets of its sequences.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::Client;
use crate::shared::{Full, Shared, Size};

/// Identifies a request. A request that came later has a larger key.
pub type RequestKey = u64;

/// Where the sequences of one request wait.
///
/// Each of them takes a place in the queue and its prompt's tokens until it is admitted, but all of them together take at most
/// [`Shared::share`]. The others wait behind those, in the request's own place. So a request with many prompts does not fill the queue, and
/// an empty queue takes every request, however many sequences it has.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    key: RequestKey,
    client: Client,
    /// What the sequences need that wait or are still to be handed in.
    waiting: Mutex<Size>,
    /// The tokens of the longest prompt.
    longest: usize,
}

impl Place {
    /// Sequences have been admitted, or will never be.
    fn leave(&self, room: Size) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shared.share(*waiting, self.longest);
        *waiting = waiting.minus(room);
        self.shared.give_back(self.client.tenant, before.minus(self.shared.share(*waiting, self.longest)));
    }
}

/// The tickets of a request that were not handed out yet.
#[derive(Debug)]
pub struct Tickets {
    place: Arc<Place>,
    /// By sequence, the last first: the tokens of its prompt.
    left: Vec<usize>,
}

impl Tickets {
    /// Tickets for the sequences of a new request, whose prompts have as many tokens.
    ///
    /// # Errors
    /// The queue is full, or the client's part of it.
    pub fn take(shared: &Arc<Shared>, client: Client, prompts: impl IntoIterator<Item = usize>) -> Result<Self, Full> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut left: Vec<usize> = prompts.into_iter().collect();
        left.reverse();
        let (room, longest) = (Size { places: left.len(), tokens: left.iter().sum() }, left.iter().copied().max().unwrap_or(0));
        shared.take(client.tenant, shared.share(room, longest))?;
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { place: Arc::new(Place { shared: shared.clone(), key, client, waiting: Mutex::new(room), longest }), left })
    }

    /// None if all were handed out.
    pub fn next(&mut self) -> Option<Ticket> {
        let tokens = self.left.pop()?;
        self.place.shared.add_active();
        Some(Ticket { place: self.place.clone(), waiting: Some(Size { places: 1, tokens }) })
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        self.place.leave(Size { places: self.left.len(), tokens: self.left.iter().sum() });
    }
}

/// Counts one sequence: in the queue until it is admitted, and active until the ticket is dropped, wherever that happens.
#[derive(Debug)]
pub struct Ticket {
    place: Arc<Place>,
    /// What it takes of the queue.
    waiting: Option<Size>,
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
        if let Some(room) = self.waiting.take() {
            self.place.leave(room);
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

    fn queue(places: usize, tokens: usize) -> Arc<Shared> {
        Arc::new(Shared::new(Size { places, tokens }))
    }

    fn take(shared: &Arc<Shared>, prompts: &[usize]) -> Result<Tickets, Full> {
        Tickets::take(shared, Client::default(), prompts.iter().copied())
    }

    #[test]
    fn a_request_takes_at_most_an_eighth_of_the_queue_and_gives_it_back_as_its_sequences_leave() {
        let shared = queue(16, 1000);
        let fits = |places| {
            let room = Size { places, tokens: 0 };
            shared.take(None, room).is_ok() && (shared.give_back(None, room), true).1
        };
        let mut large = take(&shared, &[1; 5]).unwrap();
        assert!(fits(14) && !fits(15), "two of sixteen places are taken");
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| large.next()).collect();
        assert_eq!((tickets.len(), shared.num_active()), (5, 5));
        tickets[..3].iter_mut().for_each(Ticket::leave_queue);
        assert!(!fits(15), "two still wait");
        tickets[3].leave_queue();
        assert!(fits(15) && !fits(16));
        tickets.clear();
        assert!(fits(16) && shared.num_active() == 0);
        drop(take(&shared, &[1; 1000]).unwrap());
        assert!(fits(16), "tickets that were never handed out");
        assert!(shared.take(None, Size { places: 15, tokens: 0 }).is_ok());
        assert!(take(&shared, &[1; 2]).is_err() && take(&shared, &[1]).is_ok());
    }

    #[test]
    fn an_empty_queue_takes_every_request() {
        for most in [0, 1, 7, 512] {
            let shared = queue(most, most);
            let mut tickets = take(&shared, &[9; 10_000]).unwrap();
            assert_eq!(std::iter::from_fn(|| tickets.next()).count(), 10_000);
        }
    }

    #[test]
    fn tokens_of_waiting_prompts_are_bounded() {
        let shared = queue(512, 100);
        // Longer than the bound: it is served, since nothing waits.
        let mut long = take(&shared, &[150]).unwrap();
        assert_eq!(take(&shared, &[1]).err(), Some(Full::Tokens));
        assert_eq!(shared.full(None), Some(Full::Tokens));
        let mut ticket = long.next().unwrap();
        ticket.leave_queue();
        assert_eq!(shared.full(None), None, "it runs");
        let waiting = [take(&shared, &[40]).unwrap(), take(&shared, &[50]).unwrap()];
        assert_eq!((take(&shared, &[11]).err(), take(&shared, &[10]).err()), (Some(Full::Tokens), None));
        drop(waiting);
        // Many prompts of one request leave room: an eighth of the tokens, or its longest prompt.
        let mut many = take(&shared, &[10; 1000]).unwrap();
        assert!(take(&shared, &[87]).is_ok() && take(&shared, &[89]).is_err());
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| many.next()).collect();
        tickets.drain(1..);
        assert!(take(&shared, &[90]).is_ok() && take(&shared, &[91]).is_err(), "one of ten tokens waits");
    }
}
