//! `HEAD /api/blobs/{digest}` and `POST /api/blobs/{digest}`: files that a model is made of.

use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, web};
use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::types::common::ErrorBody;
use http::error::{ApiError, Kind};
use http::json::is_of_browser;
use http::state::{AppState, off_loop};
use http::tenant::Tenant;
use registry::{NewBlob, PullError};

/// The size of the buffer that an upload fills before it is written [bytes].
const BUFFER: usize = 1 << 20;

fn wrong_digest(fault: String) -> ApiError {
    ApiError::field("digest", fault)
}

/// Ask whether a file was uploaded, as Ollama does
#[utoipa::path(head, path = "/api/blobs/{digest}", operation_id = "ollamaHasBlob", tag = "ollama",
    params(("digest" = String, Path, description = "`sha256:` and 64 hex digits")),
    responses(
        (status = 200, description = "the file is there"),
        (status = 400, description = "the digest has another form"),
        (status = 404, description = "the file does not exist")))]
pub async fn head(state: web::Data<AppState>, http: HttpRequest, digest: web::Path<String>) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    let registry = state.registry.clone();
    match off_loop(move || registry.has_blob(&digest)).await?.map_err(wrong_digest)? {
        true => Ok(HttpResponse::Ok().finish()),
        false => Err(ApiError::new(Kind::NotFound, "the blob does not exist: POST it to the same path")),
    }
}

/// Upload a file, as Ollama does
///
/// The body is the file itself, whose sha256 the path names. A file that no model is made of is removed after a day.
#[utoipa::path(post, path = "/api/blobs/{digest}", operation_id = "ollamaUploadBlob", tag = "ollama",
    params(("digest" = String, Path, description = "`sha256:` and 64 hex digits")),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "the file was there before"),
        (status = 201, description = "the file is there"),
        (status = 400, description = "the digest has another form, or the file has another digest", body = ErrorBody),
        (status = 403, description = "the request may not manage models", body = ErrorBody)))]
pub async fn upload(
    state: web::Data<AppState>,
    http: HttpRequest,
    digest: web::Path<String>,
    mut body: web::Payload,
) -> Result<HttpResponse, ApiError> {
    Tenant::of(&http).check_admin(&http, state.keys.is_required())?;
    // Without keys, a page of another origin must not fill the disk.
    if is_of_browser(&http) && http.headers().contains_key(header::ORIGIN) {
        return Err(ApiError::new(Kind::MediaType, "files for models are not uploaded from a browser"));
    }
    let digest = digest.into_inner();
    let (registry, name) = (state.registry.clone(), digest.clone());
    if off_loop(move || registry.has_blob(&name)).await?.map_err(wrong_digest)? {
        return Ok(HttpResponse::Ok().finish());
    }
    let length = http.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let registry = state.registry.clone();
    let mut blob = off_loop(move || registry.new_blob(&digest, length)).await?.map_err(|error| refused(&error))?;
    let patience = Duration::from_secs(state.limits().body_timeout_seconds);
    // One buffer fills while the other one is written.
    let mut held = state.bodies.share();
    held.set(2 * BUFFER)?;
    let mut gathered = BytesMut::new();
    loop {
        let chunk = timeout(patience, body.next()).await;
        let chunk = chunk.map_err(|_| ApiError::new(Kind::Timeout, "the upload has stopped: send it again"))?;
        let is_last = chunk.is_none();
        if let Some(chunk) = chunk {
            gathered.extend_from_slice(
                &chunk.map_err(|error| ApiError::new(Kind::BrokenBody, format!("the body could not be read: {error}")))?,
            );
        }
        if is_last || gathered.len() >= BUFFER {
            blob = written(blob, std::mem::take(&mut gathered)).await?;
        }
        if is_last {
            break;
        }
    }
    off_loop(move || blob.finish()).await?.map_err(|error| refused(&error))?;
    Ok(HttpResponse::Created().finish())
}

async fn written(mut blob: NewBlob, bytes: BytesMut) -> Result<NewBlob, ApiError> {
    let written = off_loop(move || blob.write(&bytes).map(|()| blob)).await?;
    written.map_err(|error| refused(&error))
}

/// Only the operator may see errors of the disk.
fn refused(error: &PullError) -> ApiError {
    match error {
        PullError::Refused(text) => ApiError::new(Kind::CreateFailed, text.clone()),
        other => {
            tracing::error!("a file of a client could not be kept: {}", other.to_string().escape_debug());
            ApiError::new(Kind::StorageGone, "the file could not be kept: the server's log has the cause")
        }
    }
}
