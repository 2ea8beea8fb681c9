//! HTTP and OpenAI's JSON: the only place that knows them.

mod chat;
mod choices;
mod completions;
mod convert;
mod docs;
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
mod server;
mod sse;
mod state;
pub mod types;

use actix_web::http::{Method, header};
use actix_web::{HttpRequest, HttpResponse, Resource, ResponseError, Route, web};

pub use docs::openapi_json;
pub use server::{listen, serve};
pub use state::AppState;

use error::{ApiError, Kind, quoted};

/// Every route.
fn routes(config: &mut web::ServiceConfig) {
    config
        .service(resource("/v1/chat/completions", Method::POST, web::post().to(chat::create)))
        .service(resource("/v1/completions", Method::POST, web::post().to(completions::create)))
        .service(resource("/v1/models", Method::GET, web::get().to(models::list)))
        .service(resource("/v1/models/{id:.+}", Method::GET, web::get().to(models::retrieve)))
        .service(resource("/health", Method::GET, web::get().to(health::health)))
        .service(resource("/ready", Method::GET, web::get().to(health::ready)))
        .service(resource("/version", Method::GET, web::get().to(health::version)))
        .service(resource("/metrics", Method::GET, web::get().to(metrics::exposition)))
        .service(resource("/openapi.json", Method::GET, web::get().to(docs::openapi)))
        .service(resource("/docs", Method::GET, web::get().to(docs::redirect)))
        .service(docs::page())
        .default_service(web::to(not_found));
}

/// One method on a path; the others get a 405 that says which.
fn resource(path: &str, method: Method, route: Route) -> Resource {
    web::resource(path).route(route).default_service(web::to(move |request: HttpRequest| {
        let allowed = method.to_string();
        async move {
            let message = format!("{} is not allowed on {}: use {allowed}", quoted(request.method().as_str()), quoted(request.path()));
            let mut response = ApiError::new(Kind::MethodNotAllowed, message).error_response();
            response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_str(&allowed).expect("a method is a header value"));
            response
        }
    }))
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let message = format!("no such route: {} {}", quoted(request.method().as_str()), quoted(request.path()));
    ApiError::new(Kind::RouteNotFound, message).error_response()
}

#[cfg(test)]
mod tests;
