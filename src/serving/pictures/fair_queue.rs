//! [`FairQueue`]: jobs of several clients, which take turns.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The part of the places that one client may hold, as a divisor.
const SHARE: usize = 2;

/// A bounded queue. Each client's jobs are in order, and the clients take turns.
pub(super) struct FairQueue<T> {
    state: Mutex<State<T>>,
    is_filled: Condvar,
    capacity: usize,
}

struct State<T> {
    jobs: HashMap<u64, VecDeque<T>>,
    /// The clients that have jobs, in the order of their turns.
    turns: VecDeque<u64>,
    len: usize,
    is_closed: bool,
}

/// Why a job is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Full,
    Closed,
}

impl<T> FairQueue<T> {
    pub fn new(capacity: usize) -> Self {
        let state = State { jobs: HashMap::new(), turns: VecDeque::new(), len: 0, is_closed: false };
        Self { state: Mutex::new(state), is_filled: Condvar::new(), capacity }
    }

    /// Adds a job of a client.
    ///
    /// # Errors
    /// All places are taken, or the client holds its share of them.
    pub fn push(&self, client: u64, job: T) -> Result<(), Refusal> {
        let mut state = self.state();
        if state.is_closed {
            return Err(Refusal::Closed);
        }
        let own = state.jobs.get(&client).map_or(0, VecDeque::len);
        if state.len >= self.capacity || own >= self.capacity.div_ceil(SHARE) {
            return Err(Refusal::Full);
        }
        if own == 0 {
            state.turns.push_back(client);
        }
        state.jobs.entry(client).or_default().push_back(job);
        state.len += 1;
        self.is_filled.notify_one();
        Ok(())
    }

    /// Waits for the next job. `None` once the queue is closed.
    pub fn pop(&self) -> Option<T> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.pop() {
                return Some(job);
            }
            state = self.is_filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the queue. Drops the jobs in it and returns their number.
    pub fn close(&self) -> usize {
        let mut state = self.state();
        state.is_closed = true;
        state.jobs.clear();
        state.turns.clear();
        self.is_filled.notify_all();
        std::mem::take(&mut state.len)
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn pop(&mut self) -> Option<T> {
        let client = self.turns.pop_front()?;
        let jobs = self.jobs.get_mut(&client)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.jobs.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.len -= usize::from(job.is_some());
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_take_turns_and_none_holds_all_places() {
        let queue = FairQueue::new(6);
        assert_eq!([1, 2, 3, 4].map(|job| queue.push(1, job)), [Ok(()), Ok(()), Ok(()), Err(Refusal::Full)]);
        assert_eq!([10, 11].map(|job| queue.push(2, job)), [Ok(()), Ok(())]);
        assert_eq!([20, 21].map(|job| queue.push(3, job)), [Ok(()), Err(Refusal::Full)], "all places are taken");
        let order: Vec<i32> = (0..6).map_while(|_| queue.pop()).collect();
        assert_eq!(order, [1, 10, 20, 2, 11, 3]);
        queue.push(1, 4).unwrap();
        assert_eq!((queue.close(), queue.pop(), queue.push(1, 5)), (1, None, Err(Refusal::Closed)));
    }
}
