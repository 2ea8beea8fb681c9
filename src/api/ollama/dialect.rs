//! Ollama's implementation of `Dialect`: its paths, routes, errors and document.

use actix_web::HttpResponse;
use actix_web::guard::{self, GuardContext};
use actix_web::http::header;
use actix_web::web::{self, ServiceConfig};
use serde_json::{Value, json};

use super::{blobs, chat, docs, embed, error, generate, make, models, pull, show, unsupported};
use http::dialect::Dialect;
use http::error::ApiError;
use http::openapi::Document;
use http::routes::{get, resource};

/// The path where browsers get the chat page.
const ROOT: &str = "/";

pub struct Ollama;

impl Dialect for Ollama {
    fn prefixes(&self) -> &'static [&'static str] {
        &["/api"]
    }

    fn keeping_prefixes(&self) -> &'static [&'static str] {
        &["/api/pull", "/api/push", "/api/create", "/api/copy", "/api/delete", "/api/blobs"]
    }

    fn routes(&self, config: &mut ServiceConfig) {
        config
            .service(web::resource(ROOT).guard(guard::fn_guard(asks_no_page)).to(running))
            .service(resource("/api/version", "GET, HEAD", get().to(models::version)))
            .service(resource("/api/tags", "GET, HEAD", get().to(models::tags)))
            .service(resource("/api/ps", "GET, HEAD", get().to(models::ps)))
            .service(resource("/api/show", "POST", web::post().to(show::show)))
            .service(resource("/api/chat", "POST", web::post().to(chat::create)))
            .service(resource("/api/generate", "POST", web::post().to(generate::create)))
            .service(resource("/api/embed", "POST", web::post().to(embed::embed)))
            .service(resource("/api/embeddings", "POST", web::post().to(embed::embeddings)))
            .service(resource("/api/create", "POST", web::post().to(make::create)))
            .service(resource("/api/copy", "POST", web::post().to(make::copy)))
            .service(resource("/api/blobs/{digest}", "POST, HEAD", web::post().to(blobs::upload)).route(web::head().to(blobs::head)))
            .service(resource("/api/pull", "POST", web::post().to(pull::pull)))
            .service(resource("/api/delete", "DELETE", web::delete().to(models::delete)))
            .configure(unsupported::routes);
    }

    fn error_body(&self, error: &ApiError, _: Option<&str>) -> Value {
        json!(error::body(error))
    }

    fn document(&self) -> Document {
        docs::document()
    }
}

/// Whether the client is not a browser. Browsers get the chat page at `/`.
fn asks_no_page(context: &GuardContext) -> bool {
    let head = context.head();
    let wants_page = |value: &header::HeaderValue| value.to_str().is_ok_and(|text| text.to_ascii_lowercase().contains("text/html"));
    matches!(head.method.as_str(), "GET" | "HEAD") && !head.headers().get_all(header::ACCEPT).any(wants_page)
}

/// Returns the text by which clients recognise an Ollama server.
async fn running() -> HttpResponse {
    HttpResponse::Ok().content_type("text/plain; charset=utf-8").insert_header((header::VARY, "accept")).body("Ollama is running")
}
