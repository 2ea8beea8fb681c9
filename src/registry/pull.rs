//! A download, as its followers see it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
}

impl Pull {
    pub(crate) fn new(id: &str) -> Self {
        Self { id: id.to_owned(), meter: Arc::default(), ended: watch::channel(None).0 }
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
pub struct Pulls(pub(crate) Mutex<BTreeMap<String, Arc<Pull>>>);

impl Pulls {
    /// The downloads in progress.
    pub fn list(&self) -> Vec<Arc<Pull>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
