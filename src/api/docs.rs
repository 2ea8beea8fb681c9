//! The OpenAPI document and the page that shows it.

use actix_web::{HttpResponse, http::header};
use utoipa::OpenApi;
use utoipa_swagger_ui::{Config, SwaggerUi};

use super::types::{chat, common, completions, embeddings, error, logprobs, models, responses, tokens, usage};

#[derive(OpenApi)]
#[openapi(
    info(title = "Penstock", description = "An OpenAI-compatible API over an engine of its own for quantised GGUF models."),
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
        super::models::list,
        super::models::retrieve,
        super::health::health,
        super::health::ready,
        super::health::version,
        super::metrics::exposition
    ),
    components(schemas(
        chat::ChatRequest,
        chat::ChatCompletion,
        chat::ChatChunk,
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
        models::Status,
        models::Version,
        responses::ResponseRequest,
        responses::ResponseObject,
        responses::ResponseEvent,
        responses::DeletedResponse,
        tokens::TokenizeRequest,
        tokens::Tokens,
        tokens::DetokenizeRequest,
        tokens::TemplateRequest,
        tokens::PromptText,
        usage::Usage
    )),
    tags(
        (name = "generation", description = "Answers and texts"),
        (name = "tokens", description = "What a prompt becomes"),
        (name = "models", description = "What is served"),
        (name = "operations", description = "For probes, dashboards and autoscalers")
    )
)]
struct Document;

/// The OpenAPI document of this build.
pub fn openapi_json() -> String {
    let mut text = Document::openapi().to_pretty_json().expect("the document is JSON");
    text.push('\n');
    text
}

/// `/openapi.json`
pub async fn openapi() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(openapi_json())
}

/// `/docs` → `/docs/`
pub async fn redirect() -> HttpResponse {
    HttpResponse::PermanentRedirect().insert_header((header::LOCATION, "/docs/")).finish()
}

/// The page, with its scripts in the binary: it works offline.
pub fn page() -> SwaggerUi {
    SwaggerUi::new("/docs/{_:.*}").config(Config::from("/openapi.json"))
}

#[cfg(test)]
mod tests {
    /// `PENSTOCK_BLESS=1` rewrites the committed document.
    #[test]
    fn the_committed_document_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/openapi.json");
        let text = super::openapi_json();
        if std::env::var_os("PENSTOCK_BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(committed == text, "openapi/openapi.json is not what the code says: run this test with PENSTOCK_BLESS=1");
    }
}
