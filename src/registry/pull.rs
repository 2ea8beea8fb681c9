//! A download, as its followers see it.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use catalogue::Meter;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PullState {
    /// In progress: bytes received, and in total if known.
    Running {
        done: u64,
        total: Option<u64>,
    },
    Done,
    /// The log has the cause.
    Failed,
}

/// A download in progress, or the last one of its model.
pub struct Pull {
    pub id: String,
    pub(crate) meter: Arc<Meter>,
    ended: watch::Sender<Option<bool>>,
    wish: Mutex<Wish>,
}

/// Who wants a download.
#[derive(Default)]
struct Wish {
    num_waiting: usize,
    /// Somebody wants it even if nobody waits.
    is_kept: bool,
}

/// A client that waits for a download. If the last one leaves and nobody else wants it, the download is given up.
pub struct Waiting(pub(crate) Arc<Pull>);

impl Deref for Waiting {
    type Target = Pull;

    fn deref(&self) -> &Pull {
        &self.0
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut wish = lock(&self.0.wish);
        wish.num_waiting -= 1;
        if wish.num_waiting == 0 && !wish.is_kept {
            self.0.meter.give_up();
        }
    }
}

impl Pull {
    pub(crate) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), meter: Arc::default(), ended: watch::channel(None).0, wish: Mutex::default() }
    }

    /// One more wants it: a client that waits, or one that wants it in any case. False: it was given up before.
    pub(crate) fn join(&self, is_kept: bool) -> bool {
        let mut wish = lock(&self.wish);
        if self.meter.is_given_up() {
            return false;
        }
        wish.num_waiting += usize::from(!is_kept);
        wish.is_kept |= is_kept;
        true
    }

    pub(crate) fn end(&self, is_done: bool) {
        self.ended.send_replace(Some(is_done));
    }

    pub fn state(&self) -> PullState {
        match *self.ended.borrow() {
            None => PullState::Running { done: self.meter.done(), total: self.meter.total() },
            Some(true) => PullState::Done,
            Some(false) => PullState::Failed,
        }
    }

    /// Completes when the download has ended.
    pub async fn ended(&self) {
        // The wait fails only if the sender is dropped, and `self` owns it.
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }
}

#[derive(Default)]
pub struct Pulls(pub(crate) Mutex<BTreeMap<String, Arc<Pull>>>, pub(crate) Ending);

/// The number of downloads that were given up, and whose place another has taken before they had ended.
pub type Ending = AtomicUsize;

impl Pulls {
    /// The downloads in progress.
    pub fn list(&self) -> Vec<Arc<Pull>> {
        lock(&self.0).values().cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
