//! Anthropic's implementation of `Dialect`: its paths, routes, errors and document.

use actix_web::guard;
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::web::{self, ServiceConfig};
use serde_json::{Value, json};

use super::{count, docs, error, messages, models};
use http::dialect::Dialect;
use http::error::ApiError;
use http::openapi::Document;
use http::routes::{get, resource};

/// A header that every client of this dialect sends. It decides which dialect a shared path belongs to.
const VERSION: &str = "anthropic-version";
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

pub struct Anthropic;

impl Dialect for Anthropic {
    fn prefixes(&self) -> &'static [&'static str] {
        &["/v1/messages"]
    }

    fn claims(&self, path: &str, headers: &HeaderMap) -> bool {
        (path == models::PATH || path.starts_with(models::PREFIX)) && headers.contains_key(VERSION)
    }

    fn routes(&self, config: &mut ServiceConfig) {
        let is_claimed = || guard::fn_guard(|context| context.head().headers().contains_key(VERSION));
        config
            .service(resource("/v1/messages", "POST", web::post().to(messages::create)))
            .service(resource("/v1/messages/count_tokens", "POST", web::post().to(count::count)))
            .service(resource("/v1/models", "GET, HEAD", get().to(models::list)).guard(is_claimed()))
            .service(resource("/v1/models/{id:.+}", "GET, HEAD", get().to(models::retrieve)).guard(is_claimed()));
    }

    fn error_body(&self, error: &ApiError, id: Option<&str>) -> Value {
        json!(error::body(error, id))
    }

    fn error_status(&self, error: &ApiError) -> StatusCode {
        error::status(error)
    }

    fn mark(&self, headers: &mut HeaderMap, id: &str) {
        if let Ok(value) = HeaderValue::from_str(id) {
            headers.insert(REQUEST_ID, value);
        }
    }

    fn document(&self) -> Document {
        docs::document()
    }
}
