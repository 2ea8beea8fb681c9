//! Liveness, readiness and version.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use http::state::AppState;
use serving::ReplicaStatus;

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// `ok`, `ready`, `loading`, `draining` or `engine stopped`
    #[schema(example = "ok")]
    pub status: String,
    /// The replicas that have left models whose other replicas serve on
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub lost_replicas: Vec<LostReplica>,
}

/// A replica that has left its model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LostReplica {
    #[schema(example = "smollm2:135m")]
    pub model: String,
    /// The replica's number, starting at 0
    #[schema(example = 1)]
    pub replica: usize,
    #[schema(example = "cuda:1")]
    pub device: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Version {
    #[schema(example = "0.1.0")]
    pub version: String,
}

/// The work that the server is busy with.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Load {
    /// The number of requests that run a model or wait for one.
    #[schema(example = 3)]
    pub server_load: usize,
}

fn status(state: &AppState, ok: bool, text: &str) -> HttpResponse {
    let lost = |(model, lost): (String, ReplicaStatus)| LostReplica { model, replica: lost.number, device: lost.place };
    let lost_replicas = state.registry.lost_replicas().into_iter().map(lost).collect();
    let body = Status { status: text.into(), lost_replicas };
    if ok { HttpResponse::Ok().json(body) } else { HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body) }
}

/// Whether the process and all its models are alive
#[utoipa::path(get, path = "/health", tag = "operations", responses(
    (status = 200, description = "the process is alive, and so is every loaded model", body = Status),
    (status = 503, description = "every engine of a model has stopped", body = Status)))]
pub async fn health(state: web::Data<AppState>) -> HttpResponse {
    if state.registry.has_dead_engine() { status(&state, false, "engine stopped") } else { status(&state, true, "ok") }
}

/// Whether the process and all its models are alive, at the path of llama.cpp's server
#[utoipa::path(get, path = "/v1/health", operation_id = "healthBelowV1", tag = "operations", responses(
    (status = 200, description = "the process is alive, and so is every loaded model", body = Status),
    (status = 503, description = "every engine of a model has stopped", body = Status)))]
pub async fn v1_health(state: web::Data<AppState>) -> HttpResponse {
    health(state).await
}

/// Whether the process and all its models are alive, at the path of SageMaker and vLLM
#[utoipa::path(get, path = "/ping", tag = "operations", responses(
    (status = 200, description = "the process is alive, and so is every loaded model", body = Status),
    (status = 503, description = "every engine of a model has stopped", body = Status)))]
pub async fn ping(state: web::Data<AppState>) -> HttpResponse {
    health(state).await
}

/// The same as the GET
#[utoipa::path(post, path = "/ping", operation_id = "pingByPost", tag = "operations", responses(
    (status = 200, description = "the process is alive, and so is every loaded model", body = Status),
    (status = 503, description = "every engine of a model has stopped", body = Status)))]
pub async fn ping_by_post(state: web::Data<AppState>) -> HttpResponse {
    health(state).await
}

/// The number of requests that run a model now, in vLLM's words
#[utoipa::path(get, path = "/load", tag = "operations", responses((status = 200, description = "the number", body = Load)))]
pub async fn load(state: web::Data<AppState>) -> HttpResponse {
    HttpResponse::Ok().json(Load { server_load: state.drain.num_active() })
}

/// Whether the server accepts requests
///
/// It accepts none while models load, and none once a shutdown has begun.
#[utoipa::path(get, path = "/ready", tag = "operations", responses(
    (status = 200, description = "the server accepts requests", body = Status),
    (status = 503, description = "a model is loading, an engine has stopped, or the server is shutting down", body = Status)))]
pub async fn ready(state: web::Data<AppState>) -> HttpResponse {
    if state.drain.is_draining() {
        status(&state, false, "draining")
    } else if state.registry.has_dead_engine() {
        status(&state, false, "engine stopped")
    } else if state.registry.is_ready() {
        status(&state, true, "ready")
    } else {
        status(&state, false, "loading")
    }
}

/// The server's version
#[utoipa::path(get, path = "/version", tag = "operations", responses((status = 200, description = "the version", body = Version)))]
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: env!("CARGO_PKG_VERSION").into() })
}
