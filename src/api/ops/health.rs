//! Liveness, readiness and version.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use http::state::AppState;

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Status {
    /// `ok`, `ready`, `loading`, `draining` or `engine stopped`
    #[schema(example = "ok")]
    pub status: String,
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

fn status(ok: bool, text: &str) -> HttpResponse {
    let body = Status { status: text.into() };
    if ok { HttpResponse::Ok().json(body) } else { HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body) }
}

/// Whether the process and all its engines are alive
#[utoipa::path(get, path = "/health", tag = "operations", responses(
    (status = 200, description = "the process and all its engines are alive", body = Status),
    (status = 503, description = "an engine has stopped", body = Status)))]
pub async fn health(state: web::Data<AppState>) -> HttpResponse {
    if state.registry.has_dead_engine() { status(false, "engine stopped") } else { status(true, "ok") }
}

/// Whether the process and all its engines are alive, at the path of llama.cpp's server
#[utoipa::path(get, path = "/v1/health", operation_id = "healthBelowV1", tag = "operations", responses(
    (status = 200, description = "the process and all its engines are alive", body = Status),
    (status = 503, description = "an engine has stopped", body = Status)))]
pub async fn v1_health(state: web::Data<AppState>) -> HttpResponse {
    health(state).await
}

/// Whether the process and all its engines are alive, at the path of SageMaker and vLLM
#[utoipa::path(get, path = "/ping", tag = "operations", responses(
    (status = 200, description = "the process and all its engines are alive", body = Status),
    (status = 503, description = "an engine has stopped", body = Status)))]
pub async fn ping(state: web::Data<AppState>) -> HttpResponse {
    health(state).await
}

/// The same as the GET
#[utoipa::path(post, path = "/ping", operation_id = "pingByPost", tag = "operations", responses(
    (status = 200, description = "the process and all its engines are alive", body = Status),
    (status = 503, description = "an engine has stopped", body = Status)))]
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
        status(false, "draining")
    } else if state.registry.has_dead_engine() {
        status(false, "engine stopped")
    } else if state.registry.is_ready() {
        status(true, "ready")
    } else {
        status(false, "loading")
    }
}

/// The server's version
#[utoipa::path(get, path = "/version", tag = "operations", responses((status = 200, description = "the version", body = Version)))]
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: env!("CARGO_PKG_VERSION").into() })
}
