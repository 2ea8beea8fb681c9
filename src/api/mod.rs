//! HTTP and OpenAI's JSON: the only place that knows them.

mod chat;
mod choices;
mod completions;
mod convert;
mod docs;
mod embeddings;
mod error;
mod fields;
mod head;
mod health;
mod host;
mod inflate;
mod json;
mod metrics;
mod middleware;
mod models;
mod page;
mod response_draft;
mod response_events;
mod responses;
mod server;
mod sse;
mod state;
mod store;
mod tokens;
pub mod types;

use actix_web::http::header;
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Route, guard, web};

pub use docs::openapi_json;
pub use server::{Interrupted, listen, serve};
pub use state::AppState;

use error::{ApiError, Kind, quoted};

/// Every route.
fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/", "GET, HEAD", get().to(page::chat)))
        .service(resource("/v1/chat/completions", "POST", web::post().to(chat::create)))
        .service(resource("/v1/completions", "POST", web::post().to(completions::create)))
        .service(resource("/v1/embeddings", "POST", web::post().to(embeddings::create)))
        .service(resource("/v1/responses", "POST", web::post().to(responses::create)))
        .service(
            resource("/v1/responses/{id}", "GET, HEAD, DELETE", get().to(responses::retrieve)).route(web::delete().to(responses::delete)),
        )
        .service(resource("/tokenize", "POST", web::post().to(tokens::tokenize)))
        .service(resource("/detokenize", "POST", web::post().to(tokens::detokenize)))
        .service(resource("/apply-template", "POST", web::post().to(tokens::apply_template)))
        .service(resource("/tokenizer_info", "GET, HEAD", get().to(tokens::info)))
        .service(resource("/v1/models", "GET, HEAD", get().to(models::list)))
        .service(resource("/v1/models/{id:.+}", "GET, HEAD", get().to(models::retrieve)))
        .service(resource("/health", "GET, HEAD", get().to(health::health)))
        .service(resource("/ready", "GET, HEAD", get().to(health::ready)))
        .service(resource("/version", "GET, HEAD", get().to(health::version)))
        .service(resource("/metrics", "GET, HEAD", get().to(metrics::exposition)))
        .service(resource("/openapi.json", "GET, HEAD", get().to(docs::openapi)))
        .service(resource("/docs", "GET, HEAD", get().to(docs::redirect)))
        .service(docs::page())
        .default_service(web::to(not_found));
}

/// GET, and HEAD as probes send it: the server leaves the body out.
fn get() -> Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

/// A route on a path; other methods than the `allowed` ones get a 405 that says which.
fn resource(path: &str, allowed: &'static str, route: Route) -> Resource {
    web::resource(path).route(route).default_service(web::to(move |request: HttpRequest| async move {
        let message = format!("{} is not allowed on {}: use {allowed}", quoted(request.method().as_str()), quoted(request.path()));
        let mut response = ApiError::new(Kind::MethodNotAllowed, message).error_response();
        response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static(allowed));
        response
    }))
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let message = format!("no such route: {} {}", quoted(request.method().as_str()), quoted(request.path()));
    ApiError::new(Kind::RouteNotFound, message).error_response()
}

#[cfg(test)]
mod tests;
