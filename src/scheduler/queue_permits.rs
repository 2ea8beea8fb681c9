//! A request's entry in the queue, and the permits of its sequences.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::client::Client;
use crate::shared::{QueueLimit, QueueSize, Shared};

/// Identifies a request. Later requests have larger keys.
pub type RequestKey = u64;

/// The queue entry of one request.
///
/// Each sequence counts one place and its prompt's tokens against the queue until it is admitted, but a request's sequences together count
/// at most [`Shared::share`]. So a request with many prompts does not fill the queue, and an empty queue takes every request, however many
/// sequences it has.
#[derive(Debug)]
struct QueueEntry {
    shared: Arc<Shared>,
    key: RequestKey,
    client: Client,
    /// The room that the sequences need that wait or are not handed in yet.
    waiting: Mutex<QueueSize>,
    /// The tokens of the longest prompt.
    longest: usize,
}

impl QueueEntry {
    /// Gives back the room of sequences that were admitted or never will be.
    fn leave(&self, room: QueueSize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shared.share(*waiting, self.longest);
        *waiting = waiting.minus(room);
        self.shared.give_back(self.client.tenant, before.minus(self.shared.share(*waiting, self.longest)));
    }
}

/// The permits of a request's sequences that are not handed in yet.
#[derive(Debug)]
pub struct QueuePermits {
    entry: Arc<QueueEntry>,
    /// Prompt tokens of each remaining sequence, in reverse order.
    left: Vec<usize>,
}

impl QueuePermits {
    /// Takes permits for the sequences of a new request. `prompts`: the number of tokens in each prompt.
    ///
    /// # Errors
    /// The queue is full, or the tenant's part of it is.
    pub fn take(shared: &Arc<Shared>, client: Client, prompts: impl IntoIterator<Item = usize>) -> Result<Self, QueueLimit> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut left: Vec<usize> = prompts.into_iter().collect();
        left.reverse();
        let (room, longest) = (QueueSize { places: left.len(), tokens: left.iter().sum() }, left.iter().copied().max().unwrap_or(0));
        shared.take(client.tenant, shared.share(room, longest))?;
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self { entry: Arc::new(QueueEntry { shared: shared.clone(), key, client, waiting: Mutex::new(room), longest }), left })
    }

    /// The next permit. None if all were handed out.
    pub fn next(&mut self) -> Option<QueuePermit> {
        let tokens = self.left.pop()?;
        let waiting = Mutex::new(Some(QueueSize { places: 1, tokens }));
        Some(QueuePermit(Arc::new(QueueTicket { entry: self.entry.clone(), waiting })))
    }
}

impl Drop for QueuePermits {
    fn drop(&mut self) {
        self.entry.leave(QueueSize { places: self.left.len(), tokens: self.left.iter().sum() });
    }
}

/// A sequence's room in the queue.
#[derive(Debug)]
pub struct QueueTicket {
    entry: Arc<QueueEntry>,
    /// None once the sequence is admitted.
    waiting: Mutex<Option<QueueSize>>,
}

impl QueueTicket {
    /// Stops counting the sequence against the queue's bound. It is not counted again after a preemption.
    pub fn leave_queue(&self) {
        let room = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        room.into_iter().for_each(|room| self.entry.leave(room));
    }
}

/// Counts one sequence as queued, until it is admitted or the permit is dropped.
#[derive(Debug)]
pub struct QueuePermit(Arc<QueueTicket>);

impl QueuePermit {
    pub fn request(&self) -> RequestKey {
        self.0.entry.key
    }

    pub fn client(&self) -> Client {
        self.0.entry.client
    }

    pub fn ticket(&self) -> &Arc<QueueTicket> {
        &self.0
    }

    /// See [`QueueTicket::leave_queue`].
    pub fn leave_queue(&self) {
        self.0.leave_queue();
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.leave_queue();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(places: usize, tokens: usize) -> Arc<Shared> {
        Arc::new(Shared::new(QueueSize { places, tokens }))
    }

    fn take(shared: &Arc<Shared>, prompts: &[usize]) -> Result<QueuePermits, QueueLimit> {
        QueuePermits::take(shared, Client::default(), prompts.iter().copied())
    }

    #[test]
    fn a_request_takes_at_most_an_eighth_of_the_queue_and_gives_it_back_as_its_sequences_leave() {
        let shared = queue(16, 1000);
        let fits = |places| {
            let room = QueueSize { places, tokens: 0 };
            shared.take(None, room).is_ok() && (shared.give_back(None, room), true).1
        };
        let mut large = take(&shared, &[1; 5]).unwrap();
        assert!(fits(14) && !fits(15), "two of sixteen places are taken");
        let mut permits: Vec<QueuePermit> = std::iter::from_fn(|| large.next()).collect();
        assert_eq!(permits.len(), 5);
        permits[..3].iter().for_each(QueuePermit::leave_queue);
        assert!(!fits(15), "two still wait");
        permits[3].leave_queue();
        assert!(fits(15) && !fits(16));
        permits.clear();
        assert!(fits(16));
        drop(take(&shared, &[1; 1000]).unwrap());
        assert!(fits(16), "permits that were never handed out");
        assert!(shared.take(None, QueueSize { places: 15, tokens: 0 }).is_ok());
        assert!(take(&shared, &[1; 2]).is_err() && take(&shared, &[1]).is_ok());
    }

    #[test]
    fn an_empty_queue_takes_every_request() {
        for most in [0, 1, 7, 512] {
            let shared = queue(most, most);
            let mut permits = take(&shared, &[9; 10_000]).unwrap();
            assert_eq!(std::iter::from_fn(|| permits.next()).count(), 10_000);
        }
    }

    #[test]
    fn tokens_of_waiting_prompts_are_bounded() {
        let shared = queue(512, 100);
        // Longer than the bound, but nothing waits, so it is accepted.
        let mut long = take(&shared, &[150]).unwrap();
        assert_eq!(take(&shared, &[1]).err(), Some(QueueLimit::Tokens));
        assert_eq!(shared.full(None), Some(QueueLimit::Tokens));
        let permit = long.next().unwrap();
        permit.leave_queue();
        assert_eq!(shared.full(None), None, "it runs");
        let waiting = [take(&shared, &[40]).unwrap(), take(&shared, &[50]).unwrap()];
        assert_eq!((take(&shared, &[11]).err(), take(&shared, &[10]).err()), (Some(QueueLimit::Tokens), None));
        drop(waiting);
        // Many prompts of one request leave room: an eighth of the tokens, or its longest prompt.
        let mut many = take(&shared, &[10; 1000]).unwrap();
        assert!(take(&shared, &[87]).is_ok() && take(&shared, &[89]).is_err());
        let mut permits: Vec<QueuePermit> = std::iter::from_fn(|| many.next()).collect();
        permits.drain(1..);
        assert!(take(&shared, &[90]).is_ok() && take(&shared, &[91]).is_err(), "one of ten tokens waits");
    }
}
