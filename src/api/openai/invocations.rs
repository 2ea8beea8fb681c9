//! `POST /invocations`: any request for inference at one path, as SageMaker and vLLM have it. The fields of the body choose the endpoint.

use actix_web::{HttpRequest, HttpResponse, web};

use super::stores::Stores;
use super::{chat, completions, embeddings, rerank};
use http::error::{ApiError, Kind};
use http::json::JsonBody;
use http::state::AppState;

/// The fields that choose an endpoint, the first one that a body has.
const CHOOSING: &[&str] = &["messages", "prompt", "documents", "text_1", "input"];

/// Sends a body to the endpoint that its fields belong to.
pub async fn invoke(
    state: web::Data<AppState>,
    stores: web::Data<Stores>,
    http: HttpRequest,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    match body.first_of(CHOOSING).await? {
        Some("messages") => chat::create(state, stores, http, body).await,
        Some("prompt") => completions::create(state, http, body).await,
        Some("documents") => rerank::create(state, http, body).await,
        Some("text_1") => rerank::score(state, http, body).await,
        Some(_) => embeddings::create(state, http, body).await,
        None => {
            let message = "no field of the body says which endpoint it is for: send `messages`, `prompt`, `input`, `documents` or `text_1`";
            Err(ApiError::new(Kind::InvalidValue, message))
        }
    }
}
