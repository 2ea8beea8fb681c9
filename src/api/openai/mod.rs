//! OpenAI's dialect: the types on the wire, their conversion to domain requests, and one handler per endpoint.

pub mod batches;
pub mod chat;
pub mod completions;
pub mod convert;
pub mod dialect;
pub mod disk;
pub mod docs;
pub mod embeddings;
pub mod error;
pub mod files;
pub mod list;
pub mod models;
pub mod response_draft;
pub mod response_events;
pub mod response_record;
pub mod responses;
pub mod store;
pub mod stream;
pub mod tokens;
pub mod types;

#[cfg(test)]
mod tests;
