//! Anthropic's dialect: Messages. The types on the wire, their conversion to domain requests, and one handler per endpoint.

pub mod convert;
pub mod count;
pub mod dialect;
pub mod docs;
pub mod draft;
mod edits;
pub mod error;
pub mod messages;
pub mod models;
pub mod stream;
pub mod types;
