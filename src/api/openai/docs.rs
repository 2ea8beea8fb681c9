//! OpenAI's part of the OpenAPI document.

use serde_json::Value;
use utoipa::OpenApi;

use super::types::{chat, common, completions, embeddings, error, logprobs, models, responses, tokens, usage};
use crate::http::sse::describe_streams;

#[derive(OpenApi)]
#[openapi(
    paths(
        super::chat::create,
        super::completions::create,
        super::embeddings::create,
        super::responses::create,
        super::responses::retrieve,
        super::responses::delete,
        super::tokens::tokenize,
        super::tokens::detokenize,
        super::tokens::apply_template,
        super::tokens::info,
        super::models::list,
        super::models::retrieve
    ),
    components(schemas(
        chat::ChatRequest,
        chat::ChatCompletion,
        chat::ChatChunk,
        chat::PromptProgress,
        completions::CompletionRequest,
        completions::Completion,
        common::Generation,
        embeddings::EmbeddingRequest,
        embeddings::EmbeddingList,
        error::ErrorBody,
        logprobs::ChatLogprobs,
        logprobs::CompletionLogprobs,
        models::ModelList,
        models::Model,
        models::ModelSampling,
        responses::ResponseRequest,
        responses::ResponseObject,
        responses::ResponseEvent,
        responses::DeletedResponse,
        tokens::TokenizeRequest,
        tokens::Tokens,
        tokens::DetokenizeRequest,
        tokens::TemplateRequest,
        tokens::PromptText,
        tokens::TokenizerInfo,
        usage::Usage
    )),
    tags(
        (name = "generation", description = "Answers and texts"),
        (name = "tokens", description = "Prompts as tokens and as text"),
        (name = "models", description = "The models that the server knows")
    )
)]
struct Document;

/// The name of the error envelope's schema.
pub const ERROR_SCHEMA: &str = "ErrorBody";

pub fn document() -> Value {
    let mut document = serde_json::to_value(Document::openapi()).expect("the document is JSON");
    describe_streams(&mut document, ERROR_SCHEMA, Some("[DONE]"));
    document
}
