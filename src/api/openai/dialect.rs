//! OpenAI's dialect as the server sees it: its paths, routes, errors and document.

use actix_web::web::{self, Data, ServiceConfig};
use serde_json::Value;

use super::store::ResponseStore;
use super::{chat, completions, docs, embeddings, error, models, rerank, responses, tokens};
use crate::http::dialect::Dialect;
use crate::http::error::ApiError;
use crate::http::routes::{get, resource};
use config::Limits;

pub struct OpenAi {
    responses: Data<ResponseStore>,
}

impl OpenAi {
    pub fn new(limits: &Limits) -> Self {
        Self { responses: Data::new(ResponseStore::new(limits.max_stored_responses)) }
    }
}

impl Dialect for OpenAi {
    fn prefixes(&self) -> &'static [&'static str] {
        &["/v1", "/v2", "/rerank", "/score", "/tokenize", "/detokenize", "/apply-template", "/tokenizer_info"]
    }

    fn routes(&self, config: &mut ServiceConfig) {
        config
            .app_data(self.responses.clone())
            .service(resource("/v1/chat/completions", "POST", web::post().to(chat::create)))
            .service(resource("/v1/completions", "POST", web::post().to(completions::create)))
            .service(resource("/v1/embeddings", "POST", web::post().to(embeddings::create)))
            .service(resource("/v1/rerank", "POST", web::post().to(rerank::create)))
            .service(resource("/v2/rerank", "POST", web::post().to(rerank::create)))
            .service(resource("/rerank", "POST", web::post().to(rerank::create)))
            .service(resource("/v1/score", "POST", web::post().to(rerank::score)))
            .service(resource("/score", "POST", web::post().to(rerank::score)))
            .service(resource("/v1/responses", "POST", web::post().to(responses::create)))
            .service(
                resource("/v1/responses/{id}", "GET, HEAD, DELETE", get().to(responses::retrieve))
                    .route(web::delete().to(responses::delete)),
            )
            .service(resource("/tokenize", "POST", web::post().to(tokens::tokenize)))
            .service(resource("/detokenize", "POST", web::post().to(tokens::detokenize)))
            .service(resource("/apply-template", "POST", web::post().to(tokens::apply_template)))
            .service(resource("/tokenizer_info", "GET, HEAD", get().to(tokens::info)))
            .service(resource("/v1/models", "GET, HEAD", get().to(models::list)))
            .service(resource("/v1/models/{id:.+}", "GET, HEAD", get().to(models::retrieve)));
    }

    fn error_body(&self, error: &ApiError) -> String {
        serde_json::to_string(&error::body(error)).expect("the envelope is JSON")
    }

    fn document(&self) -> Value {
        docs::document()
    }

    fn error_schema(&self) -> &'static str {
        docs::ERROR_SCHEMA
    }
}
