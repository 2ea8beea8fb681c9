//! Events of models, broadcast to all followers.

use tokio::sync::broadcast;

/// The most events that are kept for a slow follower. Older ones are lost for that follower.
const KEPT: usize = 256;

/// The state of a model.
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
    /// Progress of a download: bytes received, and in total if known.
    Progress {
        done: u64,
        total: Option<u64>,
    },
    /// The list of models has changed.
    Listed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEvent {
    /// The id of the model. Empty if the event concerns all models.
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
        // Fails if there is no follower.
        let _ = self.0.send(ModelEvent { model: model.to_owned(), what });
    }

    pub fn follow(&self) -> ModelEventStream {
        ModelEventStream(self.0.subscribe())
    }
}

/// Receives every event after the subscription.
pub struct ModelEventStream(broadcast::Receiver<ModelEvent>);

impl ModelEventStream {
    /// The next event. None if no more will come. Cancel-safe.
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
