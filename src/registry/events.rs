//! What happens to models, for those who follow it.

use tokio::sync::broadcast;

/// How many events a slow follower may be behind. It misses older ones.
const KEPT: usize = 256;

/// What a model is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelState {
    Unloaded,
    Loading,
    Loaded,
    Downloading,
    Failed,
}

impl ModelState {
    pub const NAMES: [&'static str; 5] = ["unloaded", "loading", "loaded", "downloading", "failed"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelEventKind {
    ModelState(ModelState),
    /// Bytes of a download that are there, and all of them if their number is known.
    Progress {
        done: u64,
        total: Option<u64>,
    },
    /// The list of models is another one.
    Listed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEvent {
    /// The id of the model. Empty if the event is about all of them.
    pub model: String,
    pub what: ModelEventKind,
}

pub struct Events(broadcast::Sender<ModelEvent>);

impl Default for Events {
    fn default() -> Self {
        Self(broadcast::channel(KEPT).0)
    }
}

impl Events {
    pub fn send(&self, model: &str, what: ModelEventKind) {
        // It fails if nobody follows.
        let _ = self.0.send(ModelEvent { model: model.to_owned(), what });
    }

    pub fn follow(&self) -> ModelEventStream {
        ModelEventStream(self.0.subscribe())
    }
}

/// Receives every event from now on.
pub struct ModelEventStream(broadcast::Receiver<ModelEvent>);

impl ModelEventStream {
    /// The next event. None: there will be no more. Cancel safe.
    pub async fn next(&mut self) -> Option<ModelEvent> {
        loop {
            match self.0.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}
