//! The routes of this crate.

use actix_web::web::{self, ServiceConfig};

use super::{adapters, admin, catalogue, docs, health, metrics, page, router, server_props};
use http::routes::{get, resource};

pub fn routes(config: &mut ServiceConfig) {
    config
        .service(resource("/", "GET, HEAD", get().to(page::chat)))
        .service(resource("/page/{file:.*}", "GET, HEAD", get().to(page::file)))
        .service(resource("/health", "GET, HEAD", get().to(health::health)))
        .service(resource("/v1/health", "GET, HEAD", get().to(health::v1_health)))
        .service(resource("/ready", "GET, HEAD", get().to(health::ready)))
        .service(resource("/ping", "GET, HEAD, POST", get().to(health::ping)).route(web::post().to(health::ping_by_post)))
        .service(resource("/load", "GET, HEAD", get().to(health::load)))
        .service(resource("/props", "GET, HEAD", get().to(server_props::props)))
        .service(resource("/slots", "GET, HEAD", get().to(server_props::slots)))
        .service(resource("/lora-adapters", "GET, HEAD, POST", get().to(adapters::list)).route(web::post().to(adapters::set)))
        .service(resource("/version", "GET, HEAD", get().to(health::version)))
        .service(resource("/metrics", "GET, HEAD", get().to(metrics::exposition)))
        .service(resource("/admin/models", "GET, HEAD", get().to(admin::list)))
        .service(resource("/admin/models/load", "POST", web::post().to(admin::load)))
        .service(resource("/admin/models/unload", "POST", web::post().to(admin::unload)))
        .service(resource("/admin/models/pull", "POST", web::post().to(admin::pull)))
        .service(resource("/admin/models/events", "GET", web::get().to(admin::events)))
        .service(resource("/admin/catalogue", "GET, HEAD", get().to(catalogue::search)))
        .service(resource("/models", "GET, HEAD, POST", get().to(router::list)).route(web::post().to(router::pull)))
        .service(resource("/models/load", "POST", web::post().to(router::load)))
        .service(resource("/models/unload", "POST", web::post().to(router::unload)))
        .service(resource("/models/sse", "GET", web::get().to(router::events)))
        .service(resource("/openapi.json", "GET, HEAD", get().to(docs::openapi)))
        .service(resource("/docs", "GET, HEAD", get().to(docs::redirect)))
        .service(resource("/docs/{file:.*}", "GET, HEAD", get().to(docs::page)));
}
