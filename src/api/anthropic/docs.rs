//! Anthropic's part of the OpenAPI document.

use serde_json::Value;
use utoipa::OpenApi;

use super::types::{answer, error, event, models, request};
use http::sse::describe_streams;

#[derive(OpenApi)]
#[openapi(
    paths(super::messages::create, super::count::count),
    components(schemas(
        answer::MessagesAnswer,
        answer::MessagesCount,
        error::MessagesErrorBody,
        event::MessagesEvent,
        models::MessagesModel,
        models::MessagesModelList,
        request::MessagesPrompt,
        request::MessagesRequest
    )),
    tags((
        name = "messages",
        description = "Anthropic's Messages. With the header `anthropic-version`, `/v1/models` answers as `MessagesModelList`, too"
    ))
)]
struct Document;

/// The name of the error envelope's schema.
pub const ERROR_SCHEMA: &str = "MessagesErrorBody";

pub fn document() -> Value {
    let mut document = serde_json::to_value(Document::openapi()).expect("the document is JSON");
    describe_streams(&mut document, ERROR_SCHEMA, None);
    document
}
