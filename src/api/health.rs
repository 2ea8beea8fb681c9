//! Liveness, readiness and version.

use actix_web::http::header;
use actix_web::{HttpResponse, web};

use super::state::AppState;
use super::types::models::{Status, Version};

fn status(ok: bool, text: &str) -> HttpResponse {
    let body = Status { status: text.into() };
    if ok { HttpResponse::Ok().json(body) } else { HttpResponse::ServiceUnavailable().insert_header((header::RETRY_AFTER, "1")).json(body) }
}

/// Is the process alive, with every engine that it started?
#[utoipa::path(get, path = "/health", tag = "operations", responses(
    (status = 200, description = "it is", body = Status),
    (status = 503, description = "an engine has stopped", body = Status)))]
pub async fn health(state: web::Data<AppState>) -> HttpResponse {
    if state.registry.has_dead_engine() { status(false, "engine stopped") } else { status(true, "ok") }
}

/// May requests be sent here? Not while models load, nor once a shutdown has begun.
#[utoipa::path(get, path = "/ready", tag = "operations", responses(
    (status = 200, description = "they may", body = Status),
    (status = 503, description = "a model loads, an engine has stopped, or the server is shutting down", body = Status)))]
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

/// The version that runs
#[utoipa::path(get, path = "/version", tag = "operations", responses((status = 200, description = "the version", body = Version)))]
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(Version { version: env!("CARGO_PKG_VERSION").into() })
}
