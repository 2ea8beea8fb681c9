//! `POST /api/pull`

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use tokio::time::timeout;

use super::body::Body;
use super::convert;
use super::error::error_line;
use super::lines::{FRAMING, line};
use super::types::common::ErrorBody;
use super::types::models::{Progress, PullRequest};
use create::catalogue_name;
use http::error::{ApiError, Kind};
use http::state::{AppState, off_loop};
use http::stream::{Frames, respond};
use http::tenant::Tenant;
use registry::{PullState, Waiting};

/// How often the progress of a download is sent.
const PERIOD: Duration = Duration::from_millis(250);

/// Fetch a model, as Ollama does
///
/// The response is a stream of `OllamaProgress` objects, one per line, unless `stream` is false. The download ends if every client that
/// waits for it leaves, and the next one continues it.
#[utoipa::path(post, path = "/api/pull", operation_id = "ollamaPull", tag = "ollama", request_body = PullRequest, responses(
    (status = 200, description = "the model is on disk", content((Progress = "application/json"), (Progress = "application/x-ndjson"))),
    (status = 400, description = "the model cannot be fetched", body = ErrorBody),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 429, description = "too many downloads run", body = ErrorBody)))]
pub async fn pull(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (request, _held) = body.0.read(&convert::schemas::PULLS, convert::model::pull).await?;
    let (registry, name) = (state.registry.clone(), catalogue_name(&request.model));
    // Looking up a name may read the disk.
    let pull = off_loop(move || registry.pull_while_waiting(&name)).await??;
    if request.stream {
        let frames = PullStream { state: state.clone(), pull, stage: PullStage::PullFuture };
        return Ok(respond(FRAMING, frames, state.keep_alive));
    }
    tokio::select! {
        () = pull.ended() => {}
        () = state.drain.when_draining() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    }
    match pull.state() {
        PullState::Done => Ok(HttpResponse::Ok().json(Progress { status: "success".into(), ..Progress::default() })),
        _ => Err(failed()),
    }
}

fn failed() -> ApiError {
    ApiError::new(Kind::PullFailed, "the model could not be fetched: the server's log has the cause").with_param("model")
}

enum PullStage {
    PullFuture,
    Running,
    Ended,
}

/// Streams the progress of a download until it has ended.
struct PullStream {
    state: web::Data<AppState>,
    pull: Waiting,
    stage: PullStage,
}

impl Frames for PullStream {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        match self.stage {
            PullStage::PullFuture => {
                self.stage = PullStage::Running;
                return Some(vec![line(&Progress { status: "pulling manifest".into(), ..Progress::default() })]);
            }
            PullStage::Running => {
                tokio::select! {
                    // The download has ended, or its progress is due.
                    _ = timeout(PERIOD, self.pull.ended()) => {}
                    () = self.state.drain.when_draining() => {
                        self.stage = PullStage::Ended;
                        return Some(vec![error_line(&ApiError::new(Kind::Draining, "the server is shutting down"))]);
                    }
                }
            }
            PullStage::Ended => return None,
        }
        Some(vec![match self.pull.state() {
            PullState::Running { done, total } => {
                let id = &self.pull.id;
                line(&Progress { status: format!("pulling {id}"), digest: Some(id.clone()), total, completed: Some(done) })
            }
            PullState::Done => {
                self.stage = PullStage::Ended;
                line(&Progress { status: "success".into(), ..Progress::default() })
            }
            PullState::Failed => {
                self.stage = PullStage::Ended;
                error_line(&failed())
            }
        }])
    }
}
