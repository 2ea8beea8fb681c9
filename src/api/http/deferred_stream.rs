//! Streams that are opened before their model is loaded. If the load takes long, the response head is sent, followed by comments that show
//! the client the server is alive. A later error is sent in the stream.

use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use actix_web::HttpResponse;
use bytes::Bytes;
use tokio::time::timeout;

use super::error::ApiError;
use super::journal::Journal;
use super::sse::FRAMING;
use super::state::AppState;
use super::stream::{Frames, respond};

/// How long a request waits for its model before the response begins without it.
const PATIENCE: Duration = Duration::from_secs(1);

type OpenFuture<F> = Pin<Box<dyn Future<Output = Result<F, ApiError>>>>;

/// Streams the frames of `begin` once the model is loaded. `fail` makes the last frame of a stream that fails before its first piece.
pub async fn stream<F: Frames>(
    state: &AppState,
    model: &str,
    journal: Rc<Journal>,
    fail: impl Fn(&ApiError) -> Bytes + 'static,
    begin: impl Future<Output = Result<F, ApiError>> + 'static,
) -> Result<HttpResponse, ApiError> {
    let (since, keep_alive) = (Instant::now(), state.keep_alive);
    // An error here gets its own HTTP status. After the wait below, the status may have been sent already.
    if state.registry.is_loaded(model) {
        return Ok(respond(FRAMING, begin.await?, keep_alive));
    }
    let mut begin: OpenFuture<F> = Box::pin(begin);
    match timeout(PATIENCE, &mut begin).await {
        Ok(frames) => Ok(respond(FRAMING, frames?, keep_alive)),
        Err(_) => {
            let deferred = DeferredStream { stage: DeferredState::Waiting(begin), since, journal, fail: Box::new(fail), has_begun: false };
            Ok(respond(FRAMING, deferred, keep_alive))
        }
    }
}

enum DeferredState<F> {
    Waiting(OpenFuture<F>),
    Running(F),
    Ended,
}

struct DeferredStream<F> {
    stage: DeferredState<F>,
    since: Instant,
    journal: Rc<Journal>,
    fail: Box<dyn Fn(&ApiError) -> Bytes>,
    /// Whether the first comment was sent, and with it the response head.
    has_begun: bool,
}

impl<F: Frames> Frames for DeferredStream<F> {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        if !self.has_begun {
            self.has_begun = true;
            return self.beat().map(|frame| vec![frame]);
        }
        if let DeferredState::Waiting(begin) = &mut self.stage {
            match begin.await {
                Ok(frames) => self.stage = DeferredState::Running(frames),
                Err(error) => {
                    self.journal.refuse(&error);
                    self.stage = DeferredState::Ended;
                    return Some(vec![(self.fail)(&error)]);
                }
            }
        }
        match &mut self.stage {
            DeferredState::Running(frames) => frames.next().await,
            _ => None,
        }
    }

    fn stall(&self) {
        if let DeferredState::Running(frames) = &self.stage {
            frames.stall();
        }
    }

    fn beat(&mut self) -> Option<Bytes> {
        match &mut self.stage {
            DeferredState::Running(frames) => frames.beat(),
            _ => Some(format!(": loading the model, {} s\n\n", self.since.elapsed().as_secs()).into()),
        }
    }
}
