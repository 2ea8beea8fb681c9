//! Anthropic's part of the OpenAPI document.

use utoipa::OpenApi;

use super::types::{answer, error, event, models, request};
use http::openapi::Document;

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
struct Types;

pub fn document() -> Document {
    Document::of::<Types>("MessagesErrorBody", None)
}
