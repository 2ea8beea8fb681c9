//! `POST /api/create` and `POST /api/copy`

use actix_web::{HttpRequest, HttpResponse, web};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::body::Body;
use super::convert;
use super::error::error_line;
use super::lines::{FRAMING, line};
use super::types::common::ErrorBody;
use super::types::make::{CopyRequest, CreateRequest};
use super::types::models::Progress;
use http::error::{ApiError, Kind};
use http::state::{AppState, off_loop};
use http::stream::{Frames, respond};
use http::tenant::Tenant;
use registry::{CreateStage, RegistryError};

/// The most stages that wait for the client. Later ones are left out while it does not read.
const MAX_STAGES: usize = 64;

/// Make a model, as Ollama does
///
/// The model is a variant of another one, or made of uploaded files. The response is a stream of `OllamaProgress` objects, one per line,
/// unless `stream` is false. The model is made even if the client leaves.
#[utoipa::path(post, path = "/api/create", operation_id = "ollamaCreate", tag = "ollama", request_body = CreateRequest, responses(
    (status = 200, description = "the model is made", content((Progress = "application/json"), (Progress = "application/x-ndjson"))),
    (status = 400, description = "a field is wrong, or the model cannot be made", body = ErrorBody),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 404, description = "the model to start from is unknown", body = ErrorBody),
    (status = 429, description = "too many downloads run", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (request, _held) = body.0.read(&convert::schemas::CREATES, convert::make::create).await?;
    let (stages, receiver) = mpsc::channel(MAX_STAGES);
    let (registry, streams) = (state.registry.clone(), request.stream);
    let make = move || {
        let tell = |stage: CreateStage| drop(stages.try_send(Stage::Next(stage)));
        let made = registry.create(&request.model, request.recipe, &tell);
        // The last stage waits for its place. It fails if the client has left.
        drop(stages.blocking_send(Stage::Ended(made)));
    };
    let started = std::thread::Builder::new().name("create".into()).spawn(make);
    started.map_err(|_| ApiError::new(Kind::Internal, "no thread can be started"))?;
    let mut stages = CreateStream { state: state.clone(), receiver };
    if streams {
        return Ok(respond(FRAMING, stages, state.keep_alive));
    }
    while stages.wait().await?.is_some() {}
    Ok(HttpResponse::Ok().json(success()))
}

/// Copy a model, as Ollama does
///
/// The copy is a second name for the same files, with settings of its own from then on.
#[utoipa::path(post, path = "/api/copy", operation_id = "ollamaCopy", tag = "ollama", request_body = CopyRequest, responses(
    (status = 200, description = "the model has a second name"),
    (status = 400, description = "the second name is wrong or belongs to another model", body = ErrorBody),
    (status = 403, description = "the request may not manage models", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody)))]
pub async fn copy(state: web::Data<AppState>, http: HttpRequest, body: Body) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let (request, _held) = body.0.read(&convert::schemas::COPIES, convert::make::copy).await?;
    let registry = state.registry.clone();
    off_loop(move || registry.copy(&request.source, &request.destination)).await??;
    Ok(HttpResponse::Ok().finish())
}

fn success() -> Progress {
    Progress { status: "success".into(), ..Progress::default() }
}

enum Stage {
    Next(CreateStage),
    Ended(Result<(), RegistryError>),
}

/// Streams the stages of making a model.
struct CreateStream {
    state: web::Data<AppState>,
    receiver: mpsc::Receiver<Stage>,
}

impl CreateStream {
    /// Waits for the next stage. `None`: the model is made.
    async fn wait(&mut self) -> Result<Option<Progress>, ApiError> {
        let stage = tokio::select! {
            stage = self.receiver.recv() => stage,
            () = self.state.drain.when_draining() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
        };
        match stage {
            Some(Stage::Next(CreateStage::Named(status))) => Ok(Some(Progress { status, ..Progress::default() })),
            Some(Stage::Next(CreateStage::Pulling { id, done, total })) => {
                Ok(Some(Progress { status: format!("pulling {id}"), digest: Some(id), total, completed: Some(done) }))
            }
            Some(Stage::Ended(made)) => made.map(|()| None).map_err(ApiError::from),
            None => Err(ApiError::new(Kind::Internal, "the model could not be made: the server's log has the cause")),
        }
    }
}

impl Frames for CreateStream {
    async fn next(&mut self) -> Option<Vec<Bytes>> {
        if self.receiver.is_closed() && self.receiver.is_empty() {
            return None;
        }
        let (last, frame) = match self.wait().await {
            Ok(Some(stage)) => (false, line(&stage)),
            Ok(None) => (true, line(&success())),
            Err(error) => (true, error_line(&error)),
        };
        if last {
            self.receiver.close();
            while self.receiver.try_recv().is_ok() {}
        }
        Some(vec![frame])
    }
}
