//! OpenAI's part of the OpenAPI document.

use serde_json::json;
use utoipa::OpenApi;

use super::types::{
    adapters, batches, chat, common, completions, conversations, embeddings, error, files, infill, logprobs, models, native, rerank,
    responses, tokens, usage,
};
use http::openapi::Document;

#[derive(OpenApi)]
#[openapi(
    paths(
        super::chat::create,
        super::completions::create,
        super::embeddings::create,
        super::embeddings::pooling,
        super::infill::create,
        super::native::create,
        super::embeddings::native,
        super::rerank::create,
        super::rerank::score,
        super::responses::create,
        super::responses::retrieve,
        super::responses::delete,
        super::response_parts::input_tokens,
        super::response_parts::compact,
        super::response_parts::input_items,
        super::response_parts::cancel,
        super::stored_chats::list,
        super::stored_chats::retrieve,
        super::stored_chats::update,
        super::stored_chats::delete,
        super::stored_chats::messages,
        super::conversations::create,
        super::conversations::retrieve,
        super::conversations::update,
        super::conversations::delete,
        super::conversations::list_items,
        super::conversations::create_items,
        super::conversations::retrieve_item,
        super::conversations::delete_item,
        super::files::handlers::create,
        super::files::handlers::list,
        super::files::handlers::retrieve,
        super::files::handlers::delete,
        super::files::handlers::content,
        super::batches::handlers::create,
        super::batches::handlers::list,
        super::batches::handlers::retrieve,
        super::batches::handlers::cancel,
        super::tokens::tokenize,
        super::tokens::detokenize,
        super::tokens::apply_template,
        super::tokens::info,
        super::adapters::load,
        super::adapters::unload,
        super::models::list,
        super::models::retrieve
    ),
    components(schemas(
        chat::ChatRequest,
        chat::ChatCompletion,
        chat::ChatChunk,
        chat::PromptProgress,
        batches::BatchRequest,
        batches::BatchObject,
        batches::BatchLine,
        conversations::ConversationRequest,
        conversations::ConversationObject,
        files::FileUpload,
        files::FileObject,
        completions::CompletionRequest,
        completions::Completion,
        common::Generation,
        common::LoraChoice,
        adapters::LoadAdapterRequest,
        adapters::UnloadAdapterRequest,
        embeddings::EmbeddingRequest,
        embeddings::EmbeddingList,
        embeddings::PoolingList,
        infill::InfillRequest,
        native::NativeCompletionRequest,
        native::NativeCompletion,
        native::NativeEmbeddingRequest,
        native::NativeEmbeddingList,
        error::ErrorBody,
        logprobs::ChatLogprobs,
        logprobs::CompletionLogprobs,
        models::ModelList,
        models::Model,
        models::ModelSampling,
        rerank::RerankRequest,
        rerank::Ranking,
        rerank::ScoreRequest,
        rerank::Scores,
        responses::ResponseRequest,
        responses::ResponseObject,
        responses::ResponseEvent,
        responses::DeletedResponse,
        tokens::TokenizeRequest,
        tokens::Tokens,
        tokens::TokenOrPiece,
        tokens::DetokenizeRequest,
        tokens::DetokenizedText,
        tokens::TemplateRequest,
        tokens::PromptText,
        tokens::TokenizerInfo,
        usage::Usage
    )),
    tags(
        (name = "generation", description = "Answers and texts"),
        (name = "conversations", description = "Lists of items that responses read and extend"),
        (name = "files", description = "Files, and batches of requests"),
        (name = "tokens", description = "Prompts as tokens and as text"),
        (name = "models", description = "The models that the server knows")
    )
)]
struct Types;

/// Additional paths for the same operations, each with its own operation id.
const OTHER_PATHS: [(&str, &str, &str); 6] = [
    ("/v1/rerank", "/v2/rerank", "rerankV2"),
    ("/v1/rerank", "/rerank", "rerankAtRoot"),
    ("/v1/rerank", "/reranking", "nativeRerank"),
    ("/v1/rerank", "/v1/reranking", "nativeRerankV1"),
    ("/v1/score", "/score", "scoreAtRoot"),
    // It also takes the bodies of the other endpoints that run a model.
    ("/v1/chat/completions", "/invocations", "invoke"),
];

pub fn document() -> Document {
    let mut document = Document::of::<Types>("ErrorBody", Some("[DONE]"));
    let paths = &mut document.json["paths"];
    for (path, other, id) in OTHER_PATHS {
        let mut operation = paths[path]["post"].clone();
        operation["operationId"] = id.into();
        paths[other] = json!({"post": operation});
    }
    let invoke = &mut paths["/invocations"]["post"];
    invoke["summary"] = "Run a model, at the path of SageMaker and vLLM".into();
    invoke["description"] = "The body is that of a chat, as here, or of a completion (it has `prompt`), an embedding (`input`), a ranking \
        (`documents`) or a scoring (`text_1`)."
        .into();
    document
}
