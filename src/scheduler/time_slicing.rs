//! Time slicing: models on one device take turns, with one step per turn.
//!
//! A model's *debt* is the device time that it has used, divided by its share. Among the waiting models, the one with the least debt goes
//! next. When a model gets work, its debt is raised to the least debt of the busy ones, so that idle time earns no claim. While only one
//! model has work, time is not sliced: nothing is locked and nothing is counted.
//!
//! The model with the least debt may have just ended its time slice and be about to come back with its next step. The device stays free for
//! it for a moment ([`GRACE`]). Otherwise a small model would get one short slice for each long slice of a large model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the device is kept free for a model that has just ended its time slice.
const GRACE: Duration = Duration::from_millis(1);
/// How often a waiting model shows that it is alive.
const TICK: Duration = Duration::from_millis(100);
/// The longest wait for a time slice. A model that holds the device for longer may hang, so the others then run without a slice.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct SlicerState {
    models: BTreeMap<u64, ClientState>,
    next_id: u64,
    holder: Option<u64>,
}

#[derive(Debug)]
struct ClientState {
    share: f64,
    /// Device time used, divided by the share [ns].
    debt: f64,
    has_work: bool,
    waits: bool,
    /// When the model's latest time slice ended.
    ended: Option<Instant>,
}

/// Gives the models of one device their time slices.
#[derive(Debug, Default)]
pub struct TimeSlicer {
    state: Mutex<SlicerState>,
    changed: Condvar,
    /// Number of models that have work.
    num_busy: AtomicUsize,
    /// Whether a model may hang with its slice, so that no one waits for it.
    has_ended: AtomicBool,
}

impl TimeSlicer {
    fn lock(&self) -> MutexGuard<'_, SlicerState> {
        // Nothing panics under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the slices, because a model may hang with its own. From now on, models run without.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl SlicerState {
    /// Whether a waiting model goes next.
    ///
    /// # Errors
    /// How long to wait before asking again: until the device is free, or until another model's [`GRACE`] is over.
    fn may_go(&self, id: u64, now: Instant) -> Result<(), Duration> {
        let Some(own) = self.models.get(&id).filter(|_| self.holder.is_none()) else { return Err(TICK) };
        let mut wait = Duration::ZERO;
        for (other, entry) in self.models.iter().filter(|(other, entry)| **other != id && entry.has_work) {
            // With equal debts, the model whose last slice ended earlier goes first.
            if (entry.debt, entry.ended, other) >= (own.debt, own.ended, &id) {
                continue;
            }
            let back_in = entry.ended.map_or(Duration::ZERO, |ended| GRACE.saturating_sub(now.saturating_duration_since(ended)));
            wait = wait.max(if entry.waits { TICK } else { back_in });
        }
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }
}

/// A model as a client of its device's [`TimeSlicer`].
#[derive(Debug)]
pub struct TimeSliceClient {
    slicer: Arc<TimeSlicer>,
    id: u64,
    has_work: bool,
}

impl TimeSliceClient {
    /// Adds a model. `share`: the model's weight when device time is divided among the models.
    pub fn join(slicer: &Arc<TimeSlicer>, share: f64) -> Self {
        let mut state = slicer.lock();
        let id = state.next_id;
        state.next_id += 1;
        let share = if share.is_finite() { share.max(1e-3) } else { 1.0 };
        state.models.insert(id, ClientState { share, debt: 0.0, has_work: false, waits: false, ended: None });
        drop(state);
        Self { slicer: slicer.clone(), id, has_work: false }
    }

    /// Tells the slicer whether the model has work.
    pub fn set_busy(&mut self, has_work: bool) {
        if self.has_work == has_work {
            return;
        }
        self.has_work = has_work;
        let mut state = self.slicer.lock();
        let least = state.models.values().filter(|entry| entry.has_work).map(|entry| entry.debt).reduce(f64::min);
        if let Some(entry) = state.models.get_mut(&self.id) {
            entry.has_work = has_work;
            if has_work {
                // No other model is busy: old debt is forgotten.
                entry.debt = least.map_or(0.0, |least| entry.debt.max(least));
                self.slicer.num_busy.fetch_add(1, Ordering::AcqRel);
            } else {
                self.slicer.num_busy.fetch_sub(1, Ordering::AcqRel);
            }
        }
        drop(state);
        self.slicer.changed.notify_all();
    }

    /// Whether another model on the device also has work.
    pub fn is_contended(&self) -> bool {
        self.slicer.num_busy.load(Ordering::Acquire) > usize::from(self.has_work) && !self.slicer.has_ended()
    }

    /// Waits for the model's next time slice, and calls `tick` now and then. None if the holder of the device has not ended its slice
    /// within [`PATIENCE`], or if slices have ended.
    pub fn wait(&self, mut tick: impl FnMut()) -> Option<TimeSlice> {
        let start = Instant::now();
        let mut state = self.slicer.lock();
        self.set_waiting(&mut state, true);
        let slice = loop {
            let now = Instant::now();
            match state.may_go(self.id, now) {
                Ok(()) => {
                    state.holder = Some(self.id);
                    break Some(TimeSlice { slicer: self.slicer.clone(), id: self.id, start: now });
                }
                Err(_) if self.slicer.has_ended() || now.saturating_duration_since(start) >= PATIENCE => break None,
                Err(wait) => {
                    tick();
                    state = self.slicer.changed.wait_timeout(state, wait.min(TICK)).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        };
        self.set_waiting(&mut state, false);
        drop(state);
        if slice.is_none() && !self.slicer.has_ended() {
            tracing::warn!("another model has held the device for {} s: this one runs without a time slice", PATIENCE.as_secs());
        }
        slice
    }

    fn set_waiting(&self, state: &mut SlicerState, waits: bool) {
        if let Some(entry) = state.models.get_mut(&self.id) {
            entry.waits = waits;
        }
    }
}

impl Drop for TimeSliceClient {
    fn drop(&mut self) {
        self.set_busy(false);
        let mut state = self.slicer.lock();
        state.models.remove(&self.id);
        state.holder.take_if(|holder| *holder == self.id);
        drop(state);
        self.slicer.changed.notify_all();
    }
}

/// Exclusive use of the device, until dropped.
#[derive(Debug)]
pub struct TimeSlice {
    slicer: Arc<TimeSlicer>,
    id: u64,
    start: Instant,
}

impl TimeSlice {
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Drop for TimeSlice {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.slicer.lock();
        if let Some(entry) = state.models.get_mut(&self.id) {
            entry.debt += now.saturating_duration_since(self.start).as_nanos() as f64 / entry.share;
            entry.ended = Some(now);
        }
        state.holder.take_if(|holder| *holder == self.id);
        drop(state);
        self.slicer.changed.notify_all();
    }
}

/// Limits the rows of a step while other models wait, so that a step takes about [`StepRowLimit::TARGET`].
#[derive(Debug)]
pub struct StepRowLimit {
    rows: usize,
}

impl Default for StepRowLimit {
    fn default() -> Self {
        Self { rows: 256 }
    }
}

impl StepRowLimit {
    const TARGET: Duration = Duration::from_millis(20);
    /// Below this, the higher cost per row outweighs the shorter wait of the others.
    const LEAST: usize = 32;

    /// The most rows of a step in which `num_decoding` sequences decode.
    pub fn max_rows(&self, num_decoding: usize) -> usize {
        num_decoding + self.rows
    }

    /// Adjusts the limit by the duration of a step with `num_decoding` decode rows and the bound `max_rows`. Only a step that reached its
    /// bound says whether the bound is right.
    pub fn learn(&mut self, (num_rows, max_rows): (usize, usize), num_decoding: usize, took: Duration) {
        if num_rows < max_rows {
            return;
        }
        let ratio = Self::TARGET.as_secs_f64() / took.as_secs_f64().max(1e-6);
        let rows = max_rows.saturating_sub(num_decoding) as f64 * ratio.clamp(0.5, 1.5);
        self.rows = (rows as usize).max(Self::LEAST);
    }
}

#[cfg(test)]
#[path = "time_slicing_tests.rs"]
mod tests;
