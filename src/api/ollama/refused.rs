//! What Ollama has and this server does not: making, copying and uploading models.

use actix_web::HttpResponse;

use super::types::common::ErrorBody;
use crate::http::error::{ApiError, Kind};

fn refuse(what: &str, instead: &str) -> Result<HttpResponse, ApiError> {
    Err(ApiError::new(Kind::NotImplemented, format!("this server does not {what} models: {instead}")))
}

const ENTRY: &str = "an entry of its configuration gives a model another name and parameters of its own (docs/models.md)";

/// Not here: make a model
#[utoipa::path(post, path = "/api/create", operation_id = "ollamaCreate", tag = "ollama", responses(
    (status = 501, description = "the server makes no models", body = ErrorBody)))]
pub async fn create() -> Result<HttpResponse, ApiError> {
    refuse("make", ENTRY)
}

/// Not here: give a model another name
#[utoipa::path(post, path = "/api/copy", operation_id = "ollamaCopy", tag = "ollama", responses(
    (status = 501, description = "the server copies no models", body = ErrorBody)))]
pub async fn copy() -> Result<HttpResponse, ApiError> {
    refuse("copy", ENTRY)
}

/// Not here: upload a model to a registry
#[utoipa::path(post, path = "/api/push", operation_id = "ollamaPush", tag = "ollama", responses(
    (status = 501, description = "the server uploads no models", body = ErrorBody)))]
pub async fn push() -> Result<HttpResponse, ApiError> {
    refuse("upload", "it only fetches them, with /api/pull")
}

/// Not here: upload a part of a model
#[utoipa::path(post, path = "/api/blobs/{digest}", operation_id = "ollamaPutBlob", tag = "ollama",
    params(("digest" = String, Path, description = "the digest of the part")), responses(
    (status = 501, description = "the server takes no parts of models", body = ErrorBody)))]
pub async fn blob() -> Result<HttpResponse, ApiError> {
    refuse("take parts of", "put a file into its models directory, or name it in the configuration")
}

/// Not here: ask for a part of a model
#[utoipa::path(head, path = "/api/blobs/{digest}", operation_id = "ollamaHasBlob", tag = "ollama",
    params(("digest" = String, Path, description = "the digest of the part")), responses(
    (status = 501, description = "the server keeps no parts of models")))]
pub async fn find_blob() -> Result<HttpResponse, ApiError> {
    blob().await
}
