//! Ollama's part of the OpenAPI document.

use utoipa::OpenApi;

use super::types::{chat, common, embed, generate, make, models};
use http::openapi::Document;

#[derive(OpenApi)]
#[openapi(
    paths(
        super::models::version,
        super::models::tags,
        super::models::ps,
        super::show::show,
        super::chat::create,
        super::generate::create,
        super::embed::embed,
        super::embed::embeddings,
        super::pull::pull,
        super::make::create,
        super::make::copy,
        super::blobs::head,
        super::blobs::upload,
        super::models::delete
    ),
    components(schemas(
        common::ErrorBody,
        chat::ChatRequest,
        chat::Chat,
        generate::GenerateRequest,
        generate::Generated,
        embed::EmbedRequest,
        embed::Embedded,
        embed::EmbeddingsRequest,
        embed::OneEmbedding,
        models::Version,
        models::Tags,
        models::Running,
        models::ShowRequest,
        models::Show,
        models::PullRequest,
        make::CreateRequest,
        make::CopyRequest,
        models::Progress
    )),
    tags((name = "ollama", description = "Ollama's API, for its clients. Managing models needs the same rights as /admin"))
)]
struct Types;

pub fn document() -> Document {
    Document::of::<Types>("OllamaError", None)
}
