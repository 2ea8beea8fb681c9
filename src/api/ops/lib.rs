//! The operators' endpoints: health, version, metrics, model management, the OpenAPI document and the chat page.

mod adapters;
mod admin;
mod admin_types;
mod catalogue;
mod docs;
mod health;
mod metrics;
mod model_events;
mod page;
mod router;
mod routes;
mod server_props;

pub use docs::{document, openapi_json};
pub use routes::routes;
