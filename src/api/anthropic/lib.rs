//! Anthropic's dialect, Messages: the types on the wire, their conversion to domain requests, and a handler per endpoint.

pub mod convert;
pub mod count;
pub mod dialect;
pub mod docs;
mod edits;
pub mod error;
pub mod message_builder;
pub mod messages;
pub mod models;
pub mod stream;
pub mod types;
