//! The OpenAPI document and the page that shows it.

use std::sync::LazyLock;

use actix_web::{HttpResponse, http::header};
use serde_json::{Map, Value, json};
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
        super::tokens::info,
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
        tokens::TokenizerInfo,
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

/// Answers of a real server, by the name of their schema.
const EXAMPLES: &str = include_str!("../../openapi/examples.json");

/// The OpenAPI document of this build.
pub fn openapi_json() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut document = serde_json::to_value(Document::openapi()).expect("the document is JSON");
        let examples: Map<String, Value> = serde_json::from_str(EXAMPLES).expect("the examples are JSON");
        for (schema, example) in examples {
            document["components"]["schemas"][schema]["example"] = example;
        }
        refine(&mut document);
        format!("{document:#}\n")
    });
    &TEXT
}

/// Says what the derived document cannot: errors in every operation, events in streams, the bounds of 32 bits without a sign.
fn refine(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(refine),
        Value::Object(map) => {
            if let Some(responses) = map.get_mut("responses").and_then(Value::as_object_mut) {
                let content = json!({"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}});
                responses.insert("default".into(), json!({"description": "any other error", "content": content}));
            }
            if let Some(schema) = map.get_mut("text/event-stream").and_then(|media| media.get_mut("schema")) {
                *schema = event_of(schema.take());
            }
            bound(map);
            map.values_mut().for_each(refine);
        }
        _ => {}
    }
}

/// An event's schema; `chunk` is that of the JSON in it.
fn event_of(chunk: Value) -> Value {
    let content = json!({"anyOf": [chunk, {"$ref": "#/components/schemas/ErrorBody"}]});
    let data =
        json!({"anyOf": [{"const": "[DONE]"}, {"type": "string", "contentMediaType": "application/json", "contentSchema": content}]});
    json!({"type": "object", "description": "a server-sent event", "required": ["data"], "properties": {"data": data}})
}

/// utoipa calls a `u32` an `int32`, which ends at half of it.
fn bound(schema: &mut Map<String, Value>) {
    let is_unsigned = schema.get("minimum").and_then(Value::as_i64).is_some_and(|least| least >= 0);
    if is_unsigned && schema.get("format").is_some_and(|format| format == "int32") {
        schema.remove("format");
        schema.entry("maximum").or_insert(u32::MAX.into());
    }
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
            std::fs::write(path, text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap();
        assert!(committed == text, "openapi/openapi.json is not what the code says: run this test with PENSTOCK_BLESS=1");
    }
}
