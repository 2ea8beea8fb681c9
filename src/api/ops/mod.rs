//! What operators use: health, version, metrics, the OpenAPI document and the chat page.

mod docs;
mod health;
mod metrics;
mod page;
mod routes;

#[cfg(test)]
pub use docs::openapi_json;
pub use routes::routes;
