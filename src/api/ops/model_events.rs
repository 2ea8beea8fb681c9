//! Streams of model events and of download progress.

use std::sync::Arc;
use std::time::Duration;

use actix_web::web;
use bytes::Bytes;
use serde_json::json;
use tokio::time::timeout;

use super::admin_types::PullProgress;
use http::error::{ApiError, Kind};
use http::sse::data;
use http::state::AppState;
use http::stream::Frames;
use registry::{ModelEvent, ModelEventStream, Pull, PullState};

/// Streams every event from now on, in the words of `W`, until the server drains.
pub struct ModelEventFrames<W> {
    state: web::Data<AppState>,
    follower: ModelEventStream,
    word: W,
    /// Whether the first comment was sent, and with it the response head.
    has_begun: bool,
}

impl<W: Fn(&ModelEvent) -> Bytes + 'static> ModelEventFrames<W> {
    pub fn new(state: web::Data<AppState>, word: W) -> Self {
        let follower = state.registry.follow();
        Self { state, follower, word, has_begun: false }
    }
}

impl<W: Fn(&ModelEvent) -> Bytes + 'static> Frames for ModelEventFrames<W> {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(vec![Bytes::from_static(b": following\n\n")]);
        }
        tokio::select! {
            event = self.follower.next() => event.map(|event| vec![(self.word)(&event)]),
            () = self.state.drain.when_draining() => None,
        }
    }
}

/// How often the progress of a download is sent.
const PERIOD: Duration = Duration::from_millis(500);

/// Streams the progress of a download until it has ended. A failure is sent as an error in the usual envelope.
pub fn pull_frames(state: web::Data<AppState>, pull: Arc<Pull>) -> impl Frames {
    PullFrames { state, pull, has_begun: false, has_ended: false }
}

struct PullFrames {
    state: web::Data<AppState>,
    pull: Arc<Pull>,
    has_begun: bool,
    has_ended: bool,
}

impl Frames for PullFrames {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        if self.has_ended {
            return None;
        }
        if std::mem::replace(&mut self.has_begun, true) {
            tokio::select! {
                // The download has ended, or its progress is due.
                _ = timeout(PERIOD, self.pull.ended()) => {}
                () = self.state.drain.when_draining() => return None,
            }
        }
        let progress =
            |status: &str, completed, total| data(&PullProgress { model: self.pull.id.clone(), status: status.into(), completed, total });
        let state = self.pull.state();
        self.has_ended = !matches!(state, PullState::Running { .. });
        Some(vec![match state {
            PullState::Running { done, total } => progress("downloading", Some(done), total),
            PullState::Done => progress("success", None, None),
            PullState::Failed => {
                let error = ApiError::new(Kind::PullFailed, "the model could not be fetched: the server's log has the cause");
                let (message, code) = (error.message, error.kind.code());
                let detail = json!({"message": message, "type": "invalid_request_error", "param": "model", "code": code});
                data(&json!({"error": detail}))
            }
        }])
    }
}
