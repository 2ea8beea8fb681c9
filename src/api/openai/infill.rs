//! `POST /infill`: the text in a gap, as llama.cpp's server writes it for editors.

use actix_web::{HttpRequest, HttpResponse, web};

use super::convert::infill::parse;
use super::convert::schemas;
use super::native::answer;
use super::types::error::ErrorBody;
use super::types::infill::InfillRequest;
use super::types::native::NativeCompletion;
use http::error::ApiError;
use http::json::JsonBody;
use http::state::AppState;

/// Fill in a gap in a text, as llama.cpp's server does
///
/// With `stream`, the response is a stream of `NativeCompletion` events, of which the last has `stop: true`.
#[utoipa::path(post, path = "/infill", operation_id = "infill", tag = "generation", request_body = InfillRequest, responses(
    (status = 200, description = "the text in the gap",
        content((NativeCompletion = "application/json"), (NativeCompletion = "text/event-stream"))),
    (status = 400, description = "a field is wrong, the texts are too long, or the model cannot fill in", body = ErrorBody),
    (status = 404, description = "the model is unknown", body = ErrorBody),
    (status = 429, description = "the queue is full", body = ErrorBody),
    (status = 503, description = "the model is loading, or the server is shutting down", body = ErrorBody)))]
pub async fn create(state: web::Data<AppState>, http: HttpRequest, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let limits = state.limits();
    let (request, held) = body.read(&schemas::INFILLS, move |value| parse(value, &limits)).await?;
    answer(state, http, request, held).await
}
