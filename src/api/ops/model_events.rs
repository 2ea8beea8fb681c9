//! Streams of what happens to models.

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
use registry::{Follower, ModelEvent, Pull, PullState};

/// Every event from now on, in some words, until the server drains.
pub struct Followed<W> {
    state: web::Data<AppState>,
    follower: Follower,
    word: W,
    /// Whether the comment was sent with which the head goes out.
    has_begun: bool,
}

impl<W: Fn(&ModelEvent) -> Bytes + 'static> Followed<W> {
    pub fn new(state: web::Data<AppState>, word: W) -> Self {
        let follower = state.registry.follow();
        Self { state, follower, word, has_begun: false }
    }
}

impl<W: Fn(&ModelEvent) -> Bytes + 'static> Frames for Followed<W> {
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Bytes::from_static(b": following\n\n"));
        }
        tokio::select! {
            event = self.follower.next() => event.map(|event| (self.word)(&event)),
            () = self.state.drain.when_draining() => None,
        }
    }
}

/// How often a download tells how far it is.
const PERIOD: Duration = Duration::from_millis(500);

/// The progress of a download until it has ended. A failure is an error in the envelope that other errors have.
pub fn pull_frames(state: web::Data<AppState>, pull: Arc<Pull>) -> impl Frames {
    Pulled { state, pull, has_begun: false, has_ended: false }
}

struct Pulled {
    state: web::Data<AppState>,
    pull: Arc<Pull>,
    has_begun: bool,
    has_ended: bool,
}

impl Frames for Pulled {
    async fn next(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        if std::mem::replace(&mut self.has_begun, true) {
            tokio::select! {
                // It has ended, or it is time to tell how far it is.
                _ = timeout(PERIOD, self.pull.ended()) => {}
                () = self.state.drain.when_draining() => return None,
            }
        }
        let progress =
            |status: &str, completed, total| data(&PullProgress { model: self.pull.id.clone(), status: status.into(), completed, total });
        let state = self.pull.state();
        self.has_ended = !matches!(state, PullState::Running { .. });
        Some(match state {
            PullState::Running { done, total } => progress("downloading", Some(done), total),
            PullState::Done => progress("success", None, None),
            PullState::Failed => {
                let error = ApiError::new(Kind::PullFailed, "the model could not be fetched: the server's log has the cause");
                let (message, code) = (error.message, error.kind.code());
                let detail = json!({"message": message, "type": "invalid_request_error", "param": "model", "code": code});
                data(&json!({"error": detail}))
            }
        })
    }
}
