//! OpenAI's implementation of `Dialect`: its paths, routes, errors and document.

use actix_web::rt;
use actix_web::web::{self, Data, ServiceConfig};
use serde_json::{Value, json};

use super::batches::handlers as batches;
use super::batches::worker::keep_running;
use super::files::handlers as files;
use super::files::storage_folder::LazyStorage;
use super::stores::Stores;
use super::{
    adapters, chat, completions, conversations, docs, embeddings, error, infill, invocations, models, native, rerank, response_parts,
    responses, stored_chats, tokens, unsupported,
};
use config::Config;
use http::dialect::Dialect;
use http::error::ApiError;
use http::openapi::Document;
use http::routes::{get, resource};
use http::state::AppState;

/// OpenAI's dialect. Clones share the stores.
#[derive(Clone)]
pub struct OpenAi {
    storage: Data<LazyStorage>,
    stores: Data<Stores>,
}

impl OpenAi {
    pub fn new(config: &Config) -> Self {
        Self { storage: Data::new(LazyStorage::new(config.storage.clone())), stores: Data::new(Stores::new(config)) }
    }
}

impl Dialect for OpenAi {
    fn prefixes(&self) -> &'static [&'static str] {
        &[
            "/v1",
            "/v2",
            "/rerank",
            "/score",
            "/tokenize",
            "/detokenize",
            "/apply-template",
            "/tokenizer_info",
            "/pooling",
            "/invocations",
            "/infill",
            "/completion",
            "/embedding",
            "/reranking",
            "/classify",
        ]
    }

    fn keeping_prefixes(&self) -> &'static [&'static str] {
        &["/v1/files", "/v1/batches"]
    }

    fn routes(&self, config: &mut ServiceConfig) {
        config
            .app_data(self.stores.clone())
            .app_data(self.stores.responses.clone())
            .app_data(self.stores.conversations.clone())
            .app_data(self.storage.clone())
            .configure(unsupported::routes)
            .configure(native_and_rank_routes)
            .service(resource("/v1/chat/completions", "GET, HEAD, POST", web::post().to(chat::create)).route(get().to(stored_chats::list)))
            .service(
                resource("/v1/chat/completions/{id}", "GET, HEAD, POST, DELETE", get().to(stored_chats::retrieve))
                    .route(web::post().to(stored_chats::update))
                    .route(web::delete().to(stored_chats::delete)),
            )
            .service(resource("/v1/chat/completions/{id}/messages", "GET, HEAD", get().to(stored_chats::messages)))
            .service(resource("/v1/completions", "POST", web::post().to(completions::create)))
            .service(resource("/v1/embeddings", "POST", web::post().to(embeddings::create)))
            .service(resource("/pooling", "POST", web::post().to(embeddings::pooling)))
            .service(resource("/invocations", "POST", web::post().to(invocations::invoke)))
            .service(resource("/v1/responses/input_tokens", "POST", web::post().to(response_parts::input_tokens)))
            .service(resource("/v1/responses/compact", "POST", web::post().to(response_parts::compact)))
            .service(resource("/v1/responses", "POST", web::post().to(responses::create)))
            .service(
                resource("/v1/responses/{id}", "GET, HEAD, DELETE", get().to(responses::retrieve))
                    .route(web::delete().to(responses::delete)),
            )
            .service(resource("/v1/responses/{id}/input_items", "GET, HEAD", get().to(response_parts::input_items)))
            .service(resource("/v1/responses/{id}/cancel", "POST", web::post().to(response_parts::cancel)))
            .service(resource("/v1/conversations", "POST", web::post().to(conversations::create)))
            .service(
                resource("/v1/conversations/{id}", "GET, HEAD, POST, DELETE", get().to(conversations::retrieve))
                    .route(web::post().to(conversations::update))
                    .route(web::delete().to(conversations::delete)),
            )
            .service(
                resource("/v1/conversations/{id}/items", "GET, HEAD, POST", get().to(conversations::list_items))
                    .route(web::post().to(conversations::create_items)),
            )
            .service(
                resource("/v1/conversations/{id}/items/{item}", "GET, HEAD, DELETE", get().to(conversations::retrieve_item))
                    .route(web::delete().to(conversations::delete_item)),
            )
            .service(resource("/v1/files", "GET, HEAD, POST", get().to(files::list)).route(web::post().to(files::create)))
            .service(resource("/v1/files/{id}", "GET, HEAD, DELETE", get().to(files::retrieve)).route(web::delete().to(files::delete)))
            .service(resource("/v1/files/{id}/content", "GET, HEAD", get().to(files::content)))
            .service(resource("/v1/batches", "GET, HEAD, POST", get().to(batches::list)).route(web::post().to(batches::create)))
            .service(resource("/v1/batches/{id}", "GET, HEAD", get().to(batches::retrieve)))
            .service(resource("/v1/batches/{id}/cancel", "POST", web::post().to(batches::cancel)))
            .service(resource("/tokenize", "POST", web::post().to(tokens::tokenize)))
            .service(resource("/detokenize", "POST", web::post().to(tokens::detokenize)))
            .service(resource("/apply-template", "POST", web::post().to(tokens::apply_template)))
            .service(resource("/tokenizer_info", "GET, HEAD", get().to(tokens::info)))
            .service(resource("/v1/load_lora_adapter", "POST", web::post().to(adapters::load)))
            .service(resource("/v1/unload_lora_adapter", "POST", web::post().to(adapters::unload)))
            .service(resource("/v1/models", "GET, HEAD", get().to(models::list)))
            .service(resource("/v1/models/{id:.+}", "GET, HEAD", get().to(models::retrieve)));
    }

    fn begin(&self, state: &Data<AppState>) {
        let routes = self.clone();
        rt::spawn(keep_running(self.storage.clone().into_inner(), state.clone(), move |config| routes.routes(config)));
    }

    fn error_body(&self, error: &ApiError, _: Option<&str>) -> Value {
        json!(error::body(error))
    }

    fn document(&self) -> Document {
        docs::document()
    }
}

/// llama.cpp's own endpoints, and those that rank texts.
fn native_and_rank_routes(config: &mut ServiceConfig) {
    for path in ["/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        config.service(resource(path, "POST", web::post().to(rerank::create)));
    }
    config
        .service(resource("/v1/score", "POST", web::post().to(rerank::score)))
        .service(resource("/score", "POST", web::post().to(rerank::score)))
        .service(resource("/completion", "POST", web::post().to(native::create)))
        .service(resource("/embedding", "POST", web::post().to(embeddings::native)))
        .service(resource("/infill", "POST", web::post().to(infill::create)));
}
