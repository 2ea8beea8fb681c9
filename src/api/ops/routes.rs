//! The routes of this folder.

use actix_web::web::ServiceConfig;

use super::{docs, health, metrics, page};
use crate::http::routes::{get, resource};

pub fn routes(config: &mut ServiceConfig) {
    config
        .service(resource("/", "GET, HEAD", get().to(page::chat)))
        .service(resource("/health", "GET, HEAD", get().to(health::health)))
        .service(resource("/ready", "GET, HEAD", get().to(health::ready)))
        .service(resource("/version", "GET, HEAD", get().to(health::version)))
        .service(resource("/metrics", "GET, HEAD", get().to(metrics::exposition)))
        .service(resource("/openapi.json", "GET, HEAD", get().to(docs::openapi)))
        .service(resource("/docs", "GET, HEAD", get().to(docs::redirect)))
        .service(resource("/docs/{file:.*}", "GET, HEAD", get().to(docs::page)));
}
