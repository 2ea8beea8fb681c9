//! The usage of a loaded model: its leases, and the time of its last use.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::notifier::Notifier;

/// How long a model stays loaded after its last request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this long. Zero: until the requests that use it have ended.
    For(Duration),
    /// Until another model needs the memory.
    Forever,
}

/// The requests that use one load of a model.
pub struct Usage {
    num_leases: AtomicUsize,
    last: Mutex<UseTime>,
    /// How long the model stays loaded, if a request has set that.
    keep: Mutex<Option<KeepAlive>>,
    notifier: Arc<Notifier>,
}

/// A point in time, on the monotonic clock and as a date.
#[derive(Clone, Copy, Debug)]
pub struct UseTime {
    pub instant: Instant,
    pub time: SystemTime,
}

impl UseTime {
    fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }
}

impl Usage {
    pub fn new(notifier: Arc<Notifier>) -> Arc<Self> {
        Arc::new(Self { num_leases: AtomicUsize::new(0), last: Mutex::new(UseTime::now()), keep: Mutex::default(), notifier })
    }

    /// Leases the model to a request. Called under the slot's lock, so that the model cannot be unloaded in between.
    pub fn lease(self: &Arc<Self>) -> Lease {
        self.num_leases.fetch_add(1, Ordering::AcqRel);
        self.touch();
        Lease(self.clone())
    }

    /// The number of requests that use the model.
    pub fn num_leases(&self) -> usize {
        self.num_leases.load(Ordering::Acquire)
    }

    /// When a request last began or ended, or else when the model was loaded.
    pub fn last(&self) -> UseTime {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long the model stays loaded after its last request, if a request has set that.
    pub fn keep(&self) -> Option<KeepAlive> {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_keep(&self, keep: KeepAlive) {
        *self.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(keep);
    }

    fn touch(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = UseTime::now();
    }
}

/// A request's hold on a loaded model.
pub struct Lease(Arc<Usage>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.touch();
        // After the last request, the model may be unloaded to make room.
        if self.0.num_leases.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.notifier.ring();
        }
    }
}
