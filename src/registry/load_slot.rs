//! A slot for a value that is loaded on demand, used under leases and unloaded again. No lock is held while loading.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::notifier::Notifier;
use super::usage::{Lease, Usage};

/// Why a load failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFault {
    /// The models in use leave too little memory at the moment.
    NoRoom(String),
    Failed(String),
}

impl LoadFault {
    /// Time during which the fault is remembered and no load is tried. Without this pause, requests would queue for loads that cannot
    /// succeed.
    fn memory(&self) -> Duration {
        match self {
            Self::NoRoom(_) => Duration::from_millis(500),
            Self::Failed(_) => Duration::from_secs(10),
        }
    }
}

enum LoadState<T> {
    Empty,
    /// A load is in progress since this time.
    Loading(Instant),
    Ready(Arc<T>, Arc<Usage>),
    Failed(LoadFault, Instant),
    Stopped,
}

/// The state of a slot, for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    Empty,
    /// A load is in progress for this long.
    Loading(Duration),
    Ready,
    Failed,
}

/// The next action of a caller that wants the value.
pub enum LoadAction<T> {
    Ready(Arc<T>, Lease),
    /// Load the value and call [`LoadSlot::settle`]. Holds the dead value that the load replaces, if there is one.
    Load(Option<Arc<T>>),
    /// Another thread loads the value: wait for a change.
    Wait,
    Failed(LoadFault),
    Stopped,
}

/// Why a value cannot be unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnloadError {
    /// The slot holds no value.
    NotLoaded,
    Loading,
    /// This many requests use the value.
    InUse(usize),
}

pub struct LoadSlot<T> {
    state: Mutex<LoadState<T>>,
    /// Wakes threads that wait for a load. `changes` does the same for tasks.
    changed: Condvar,
    changes: watch::Sender<()>,
    num_waiting: AtomicUsize,
    /// Whether a value can still be used. A dead value is replaced at the next request.
    alive: fn(&T) -> bool,
    notifier: Arc<Notifier>,
}

impl<T> LoadSlot<T> {
    pub fn new(alive: fn(&T) -> bool, notifier: Arc<Notifier>) -> Self {
        let (changes, _) = watch::channel(());
        Self { state: Mutex::new(LoadState::Empty), changed: Condvar::new(), changes, num_waiting: AtomicUsize::new(0), alive, notifier }
    }

    fn lock(&self) -> MutexGuard<'_, LoadState<T>> {
        // Nothing that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the state, wakes all waiters and returns the previous state.
    fn set(&self, mut state: MutexGuard<'_, LoadState<T>>, next: LoadState<T>) -> LoadState<T> {
        let before = std::mem::replace(&mut *state, next);
        drop(state);
        self.changed.notify_all();
        self.changes.send_replace(());
        self.notifier.ring();
        before
    }

    /// The value, if it is loaded and alive. For inspection only, because the value may be unloaded at any time.
    pub fn peek(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            LoadState::Ready(value, _) if (self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    /// Like [`LoadSlot::peek`], with the value's usage, and also for a dead value.
    pub fn loaded(&self) -> Option<(Arc<T>, Arc<Usage>)> {
        match &*self.lock() {
            LoadState::Ready(value, usage) => Some((value.clone(), usage.clone())),
            _ => None,
        }
    }

    /// Leases the value to a request, if it is loaded and alive. Never waits.
    pub fn lease(&self) -> Option<(Arc<T>, Lease)> {
        match &*self.lock() {
            LoadState::Ready(value, usage) if (self.alive)(value) => Some((value.clone(), usage.lease())),
            _ => None,
        }
    }

    /// The value, if it has died and is not replaced yet.
    pub fn died(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            LoadState::Ready(value, _) if !(self.alive)(value) => Some(value.clone()),
            _ => None,
        }
    }

    pub fn phase(&self) -> LoadPhase {
        match &*self.lock() {
            LoadState::Empty | LoadState::Stopped => LoadPhase::Empty,
            LoadState::Loading(since) => LoadPhase::Loading(since.elapsed()),
            LoadState::Ready(..) => LoadPhase::Ready,
            LoadState::Failed(LoadFault::NoRoom(_), _) => LoadPhase::Empty,
            LoadState::Failed(LoadFault::Failed(_), _) => LoadPhase::Failed,
        }
    }

    /// Begins a request for the value. Leases the value, starts a load, or returns the reason for neither.
    pub fn begin(&self) -> LoadAction<T> {
        let state = self.lock();
        match &*state {
            LoadState::Ready(value, usage) if (self.alive)(value) => return LoadAction::Ready(value.clone(), usage.lease()),
            LoadState::Failed(fault, at) if at.elapsed() < fault.memory() => return LoadAction::Failed(fault.clone()),
            LoadState::Loading(_) => return LoadAction::Wait,
            LoadState::Stopped => return LoadAction::Stopped,
            LoadState::Ready(..) | LoadState::Empty | LoadState::Failed(..) => {}
        }
        match self.set(state, LoadState::Loading(Instant::now())) {
            LoadState::Ready(dead, _) => LoadAction::Load(Some(dead)),
            _ => LoadAction::Load(None),
        }
    }

    /// Stores the outcome of a load. Returns the value if the slot was stopped in the meantime.
    pub fn settle(&self, outcome: Result<T, LoadFault>) -> Option<T> {
        let state = self.lock();
        if matches!(&*state, LoadState::Stopped) {
            return outcome.ok();
        }
        let next = match outcome {
            Ok(value) => LoadState::Ready(Arc::new(value), Usage::new(self.notifier.clone())),
            Err(fault) => LoadState::Failed(fault, Instant::now()),
        };
        self.set(state, next);
        None
    }

    /// Takes the living value of another slot, changed by `change`, with its usage, and stops that slot, so that it loads nothing again.
    /// The requests that use the value are not disturbed.
    pub fn adopt(&self, other: &Self, change: impl FnOnce(&T) -> T) {
        let state = other.lock();
        let LoadState::Ready(value, usage) = &*state else { return };
        if !(self.alive)(value) {
            return;
        }
        let next = LoadState::Ready(Arc::new(change(value)), usage.clone());
        other.set(state, LoadState::Stopped);
        self.set(self.lock(), next);
    }

    /// A receiver that is notified of every later change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Blocks until a load in progress has ended, but not longer than `patience`.
    pub fn wait(&self, patience: Duration) {
        let state = self.lock();
        drop(self.changed.wait_timeout_while(state, patience, |state| matches!(state, LoadState::Loading(_))));
    }

    /// Takes a place among the waiting requests. None if `most` requests wait already.
    pub fn wait_in_line(&self, most: usize) -> Option<WaitPermit<'_, T>> {
        let take = |waiting: usize| (waiting < most).then_some(waiting + 1);
        self.num_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        Some(WaitPermit(self))
    }

    /// The number of requests that wait for a load.
    pub fn num_waiting(&self) -> usize {
        self.num_waiting.load(Ordering::Acquire)
    }

    /// Removes and returns the value. `force`: whether to do so even if requests use it.
    pub fn unload(&self, force: bool) -> Result<Arc<T>, UnloadError> {
        let state = self.lock();
        match &*state {
            LoadState::Ready(_, usage) if usage.num_leases() > 0 && !force => return Err(UnloadError::InUse(usage.num_leases())),
            LoadState::Ready(..) => {}
            LoadState::Loading(_) => return Err(UnloadError::Loading),
            LoadState::Empty | LoadState::Failed(..) | LoadState::Stopped => return Err(UnloadError::NotLoaded),
        }
        match self.set(state, LoadState::Empty) {
            LoadState::Ready(value, _) => Ok(value),
            _ => Err(UnloadError::NotLoaded),
        }
    }

    /// Refuses later loads and returns the value. [`LoadSlot::settle`] returns the value of a load in progress.
    pub fn stop(&self) -> Option<Arc<T>> {
        match self.set(self.lock(), LoadState::Stopped) {
            LoadState::Ready(value, _) => Some(value),
            _ => None,
        }
    }
}

/// A request that waits for a load.
pub struct WaitPermit<'a, T>(&'a LoadSlot<T>);

impl<T> Drop for WaitPermit<'_, T> {
    fn drop(&mut self) {
        self.0.num_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[path = "load_slot_tests.rs"]
mod tests;
