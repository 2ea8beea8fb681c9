//! `/admin/models`: lets operators list, load, unload and fetch models.

use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};

use super::admin_types::{
    AdminEvent, AdminModel, AdminModelList, LOADS, LoadRequest, PULLS, PullProgress, PullRequest, UNLOADS, UnloadRequest, named,
};
use super::model_events::{ModelEventFrames, pull_frames};
use http::error::{ApiError, Kind};
use http::json::JsonBody;
use http::sse::{self, data};
use http::state::{ActiveGeneration, AppState, off_loop};
use http::stream::respond;
use http::tenant::Tenant;
use registry::{ModelEvent, ModelEventKind, ModelStatus, PullState, RegistryError};

/// How often a request to unload checks whether a running load has ended.
const LOADING_POLL: Duration = Duration::from_millis(50);

/// Refuses a request that may not manage models.
pub fn check(state: &AppState, request: &HttpRequest) -> Result<(), ApiError> {
    Tenant::of(request).check_admin(request, state.keys.is_required())
}

/// Returns a model's current state.
fn model(state: &AppState, name: &str) -> Result<AdminModel, ApiError> {
    let is_it = |id: &str, aliases: &[String]| id == name || aliases.iter().any(|alias| alias == name);
    let found = state.registry.statuses().into_iter().find(|status| is_it(&status.id, &status.aliases));
    found.map(AdminModel::from).ok_or_else(|| state.registry.not_found(name).into())
}

/// The states of all models, those that chat first.
pub async fn sorted(state: &AppState) -> Result<Vec<ModelStatus>, ApiError> {
    let registry = state.registry.clone();
    off_loop(move || {
        let mut statuses = registry.statuses();
        registry.sort(&mut statuses, |status| &status.id);
        statuses
    })
    .await
}

/// List the models with their state
#[utoipa::path(get, path = "/admin/models", operation_id = "adminListModels", tag = "administration", responses(
    (status = 200, description = "every model, with its memory and its use", body = AdminModelList),
    (status = 403, description = "the request may not manage models")))]
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    check(&state, &request)?;
    let data = sorted(&state).await?.into_iter().map(AdminModel::from).collect();
    Ok(HttpResponse::Ok().json(AdminModelList { object: "list".into(), data }))
}

/// Load a model
///
/// The response is sent once the model is loaded. Other models may be unloaded to make room.
#[utoipa::path(post, path = "/admin/models/load", operation_id = "adminLoadModel", tag = "administration", request_body = LoadRequest,
    responses(
    (status = 200, description = "the model is loaded", body = AdminModel),
    (status = 403, description = "the request may not manage models"),
    (status = 404, description = "the model is unknown"),
    (status = 503, description = "the model cannot be loaded, or there is no room for it")))]
pub async fn load(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&LOADS, |value| named(value, None)).await?;
    let _active = ActiveGeneration::new(state.clone());
    tokio::select! {
        loaded = state.registry.acquire(&request.model) => drop(loaded?),
        () = state.drain.when_cut() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    }
    Ok(HttpResponse::Ok().json(model(&state, &request.model)?))
}

/// Unload a model
///
/// All names that share the load are unloaded as well. A model that is not loaded stays unloaded. One that is still loading is loaded
/// first, and the requests that wait for it then use it.
#[utoipa::path(post, path = "/admin/models/unload", operation_id = "adminUnloadModel", tag = "administration",
    request_body = UnloadRequest, responses(
    (status = 200, description = "the model is not loaded, and its memory is free", body = AdminModel),
    (status = 403, description = "the request may not manage models"),
    (status = 404, description = "the model is unknown"),
    (status = 409, description = "requests use the model, and `force` is not set")))]
pub async fn unload(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&UNLOADS, |value| named(value, Some("force"))).await?;
    unload_now(&state, &request.model, request.switch).await?;
    Ok(HttpResponse::Ok().json(model(&state, &request.model)?))
}

/// Unloads a model unless it is not loaded. A model that is still loading is loaded first.
pub async fn unload_now(state: &web::Data<AppState>, name: &str, force: bool) -> Result<(), ApiError> {
    loop {
        let (registry, name) = (state.registry.clone(), name.to_owned());
        match off_loop(move || registry.unload(&name, force)).await? {
            Ok(()) | Err(RegistryError::NotLoaded(_)) => return Ok(()),
            Err(RegistryError::Loading(_)) => tokio::select! {
                () = tokio::time::sleep(LOADING_POLL) => {}
                () = state.drain.when_cut() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// Fetch a model
///
/// The download continues if the client leaves. With `stream`, the response is a stream of `PullProgress` events.
#[utoipa::path(post, path = "/admin/models/pull", operation_id = "adminPullModel", tag = "administration", request_body = PullRequest,
    responses(
    (status = 200, description = "the model is on disk",
        content((PullProgress = "application/json"), (PullProgress = "text/event-stream"))),
    (status = 400, description = "the model cannot be fetched"),
    (status = 403, description = "the request may not manage models"),
    (status = 429, description = "too many downloads run")))]
pub async fn pull(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&PULLS, |value| named(value, Some("stream"))).await?;
    let registry = state.registry.clone();
    // Looking up a name may read the disk.
    let pull = off_loop(move || registry.pull(&request.model)).await??;
    if request.switch {
        return Ok(respond(sse::FRAMING, pull_frames(state.clone(), pull), state.keep_alive));
    }
    tokio::select! {
        () = pull.ended() => {}
        () = state.drain.when_draining() => return Err(ApiError::new(Kind::Draining, "the server is shutting down")),
    }
    match pull.state() {
        PullState::Done => {
            Ok(HttpResponse::Ok().json(PullProgress { model: pull.id.clone(), status: "success".into(), completed: None, total: None }))
        }
        _ => Err(ApiError::new(Kind::PullFailed, "the model could not be fetched: the server's log has the cause").with_param("model")),
    }
}

/// Follow the events of models
///
/// A stream of `AdminEvent` events, which ends when the server shuts down.
#[utoipa::path(get, path = "/admin/models/events", operation_id = "adminModelEvents", tag = "administration", responses(
    (status = 200, description = "events from now on", content((AdminEvent = "text/event-stream"))),
    (status = 403, description = "the request may not manage models")))]
pub async fn events(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    check(&state, &request)?;
    let word = |event: &ModelEvent| data(&worded(event));
    Ok(respond(sse::FRAMING, ModelEventFrames::new(state.clone(), word), state.keep_alive))
}

fn worded(event: &ModelEvent) -> AdminEvent {
    let model = Some(event.model.clone()).filter(|model| !model.is_empty());
    let plain = |name: &str| AdminEvent { model: model.clone(), event: name.into(), state: None, completed: None, total: None };
    match event.what {
        ModelEventKind::ModelState(state) => AdminEvent { state: Some(state.name().into()), ..plain("state") },
        ModelEventKind::Progress { done, total } => AdminEvent { completed: Some(done), total, ..plain("progress") },
        ModelEventKind::Listed => plain("list"),
    }
}
