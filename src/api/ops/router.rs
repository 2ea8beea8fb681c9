//! `/models`: models in the terms of llama.cpp's router, for tools that load and unload models through it.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::admin::{check, sorted, unload_now};
use super::admin_types::{LOADS, LoadRequest, named, router_state};
use super::model_events::ModelEventFrames;
use http::error::ApiError;
use http::json::JsonBody;
use http::sse::{self, data};
use http::state::{AppState, off_loop};
use http::stream::respond;
use http::tenant::Tenant;
use registry::{ModelEvent, ModelEventKind, ModelStatus};

/// A model with its status.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RouterModel {
    #[schema(example = "smollm2:135m")]
    pub id: String,
    #[schema(example = "model")]
    pub object: String,
    #[schema(example = "penstock")]
    pub owned_by: String,
    pub aliases: Vec<String>,
    pub status: RouterStatus,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RouterStatus {
    /// `unloaded`, `loading`, `loaded` or `downloading`
    #[schema(example = "loaded")]
    pub value: String,
    /// Whether the last load failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RouterModelList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<RouterModel>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({"success": true}))]
pub struct Success {
    pub success: bool,
}

/// An event of a model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct RouterEvent {
    /// The model. `*` means all models
    #[schema(example = "smollm2:135m")]
    pub model: String,
    /// `model_status`, `download_progress` or `models_reload`
    #[schema(example = "model_status")]
    pub event: String,
    /// The new status, or the received and total bytes of each file
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, example = json!({"status": "loaded"}))]
    pub data: Option<Value>,
}

fn success() -> HttpResponse {
    HttpResponse::Ok().json(Success { success: true })
}

/// List the models with their status, as llama.cpp's router does
#[utoipa::path(get, path = "/models", operation_id = "routerListModels", tag = "administration", responses(
    (status = 200, description = "every model that the key may use", body = RouterModelList)))]
pub async fn list(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    let (tenant, registry) = (Tenant::of(&request), &state.registry);
    let worded = |status: ModelStatus| {
        let (value, failed) = router_state(status.state);
        let ModelStatus { id, aliases, .. } = status;
        let status = RouterStatus { value: value.into(), failed: failed.then_some(true) };
        RouterModel { id, object: "model".into(), owned_by: "penstock".into(), aliases, status }
    };
    let data = sorted(&state).await?.into_iter().filter(|status| tenant.may_use(registry, &status.id)).map(worded).collect();
    Ok(HttpResponse::Ok().json(RouterModelList { object: "list".into(), data }))
}

/// Start to load a model, as llama.cpp's router does
///
/// The response does not wait for the load.
#[utoipa::path(post, path = "/models/load", operation_id = "routerLoadModel", tag = "administration", request_body = LoadRequest, responses(
    (status = 200, description = "the model is loaded or loading", body = Success),
    (status = 403, description = "the request may not manage models"),
    (status = 404, description = "the model is unknown")))]
pub async fn load(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&LOADS, |value| named(value, None)).await?;
    if state.registry.id(&request.model).is_none() {
        return Err(state.registry.not_found(&request.model).into());
    }
    let registry = state.registry.clone();
    // The status and the events tell whether the load succeeds.
    actix_web::rt::spawn(async move { drop(registry.acquire(&request.model).await) });
    Ok(success())
}

/// Unload a model, as llama.cpp's router does
///
/// A model in use stays loaded, and the response has status 409. One that is still loading is loaded first.
#[utoipa::path(post, path = "/models/unload", operation_id = "routerUnloadModel", tag = "administration", request_body = LoadRequest,
    responses(
    (status = 200, description = "the model is not loaded", body = Success),
    (status = 403, description = "the request may not manage models"),
    (status = 404, description = "the model is unknown"),
    (status = 409, description = "requests use the model")))]
pub async fn unload(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&LOADS, |value| named(value, None)).await?;
    unload_now(&state, &request.model, false).await?;
    Ok(success())
}

/// Start to fetch a model, as llama.cpp's router does
#[utoipa::path(post, path = "/models", operation_id = "routerPullModel", tag = "administration", request_body = LoadRequest, responses(
    (status = 200, description = "the download runs", body = Success),
    (status = 400, description = "the model cannot be fetched"),
    (status = 403, description = "the request may not manage models")))]
pub async fn pull(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    check(&state, &http)?;
    let (request, _held) = body.read(&LOADS, |value| named(value, None)).await?;
    let registry = state.registry.clone();
    off_loop(move || registry.pull(&request.model).map(drop)).await??;
    Ok(success())
}

/// Follow the events of models, as llama.cpp's router does
#[utoipa::path(get, path = "/models/sse", operation_id = "routerModelEvents", tag = "administration", responses(
    (status = 200, description = "events from now on", content((RouterEvent = "text/event-stream"))),
    (status = 403, description = "the request may not manage models")))]
pub async fn events(state: web::Data<AppState>, request: HttpRequest) -> Result<HttpResponse, ApiError> {
    check(&state, &request)?;
    Ok(respond(sse::FRAMING, ModelEventFrames::new(state.clone(), |event: &ModelEvent| data(&worded(event))), state.keep_alive))
}

fn worded(event: &ModelEvent) -> RouterEvent {
    let (name, data) = match event.what {
        ModelEventKind::ModelState(state) => {
            let (status, failed) = router_state(state);
            let data = if failed { json!({"status": status, "failed": true}) } else { json!({"status": status}) };
            ("model_status", Some(data))
        }
        ModelEventKind::Progress { done, total } => {
            ("download_progress", Some(json!({event.model.as_str(): {"done": done, "total": total}})))
        }
        ModelEventKind::Listed => return RouterEvent { model: "*".into(), event: "models_reload".into(), data: None },
    };
    RouterEvent { model: event.model.clone(), event: name.into(), data }
}
