//! A value that one thread loads while the others wait for it. No lock is held while loading.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Another thread is still loading it.
    Loading,
    Failed(String),
}

enum State<T> {
    Empty,
    Loading,
    Ready(Arc<T>),
    /// When and why a load failed. It is not retried at once, or requests would queue up behind loads that cannot succeed.
    Failed(String, Instant),
    Stopped,
}

/// A value that is loaded on demand, by one thread at a time.
pub struct LoadOnce<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    /// Whether a loaded value can still be used. A dead one is replaced at the next `get`.
    alive: fn(&T) -> bool,
    stop: fn(&T),
}

/// Time limits of [`LoadOnce::get`].
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long to wait for a load by another thread.
    pub wait: Duration,
    /// How long a failure is remembered before a load is tried again.
    pub failure: Duration,
}

impl<T> LoadOnce<T> {
    pub fn new(alive: fn(&T) -> bool, stop: fn(&T)) -> Self {
        Self { state: Mutex::new(State::Empty), changed: Condvar::new(), alive, stop }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, if it is loaded and alive. Never waits for a load.
    pub fn peek(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Ready(value) if (self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// The value, if it has died and was not replaced yet.
    pub fn died(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Ready(value) if !(self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// The value. If it is not loaded, this thread loads it, or waits for the thread that does.
    pub fn get(&self, patience: Patience, load: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, Unavailable> {
        let deadline = Instant::now() + patience.wait;
        let mut state = self.lock();
        let dead = loop {
            match &*state {
                State::Ready(value) if (self.alive)(value) => return Ok(value.clone()),
                State::Ready(_) | State::Empty => break std::mem::replace(&mut *state, State::Loading),
                State::Failed(_, at) if at.elapsed() >= patience.failure => break std::mem::replace(&mut *state, State::Loading),
                State::Failed(cause, _) => return Err(Unavailable::Failed(cause.clone())),
                State::Stopped => return Err(stopping()),
                State::Loading => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unavailable::Loading);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        // Frees the dead value's memory for the new one.
        drop(dead);
        self.settle(catch_unwind(AssertUnwindSafe(load)).unwrap_or_else(|panic| Err(panic_text(&*panic))))
    }

    /// Stores the outcome of a load and wakes the waiting threads.
    fn settle(&self, loaded: Result<T, String>) -> Result<Arc<T>, Unavailable> {
        let mut state = self.lock();
        let outcome = match (loaded, &*state) {
            (Ok(value), State::Stopped) => {
                drop(state);
                (self.stop)(&value);
                return Err(stopping());
            }
            (Err(_), State::Stopped) => Err(stopping()),
            (Ok(value), _) => {
                let value = Arc::new(value);
                *state = State::Ready(value.clone());
                Ok(value)
            }
            (Err(cause), _) => {
                *state = State::Failed(cause.clone(), Instant::now());
                Err(Unavailable::Failed(cause))
            }
        };
        drop(state);
        self.changed.notify_all();
        outcome
    }

    /// Stops the value. A load in progress is stopped when it ends, and later loads are refused.
    pub fn stop(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Stopped);
        self.changed.notify_all();
        if let State::Ready(value) = before {
            (self.stop)(&value);
        }
    }
}

fn stopping() -> Unavailable {
    Unavailable::Failed("the server is shutting down".into())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("a panic while loading"))
}

#[cfg(test)]
#[path = "load_once_tests.rs"]
mod tests;
