//! OpenAI's dialect: the types on the wire, their conversion to domain requests, and a handler per endpoint.

pub mod adapters;
mod background_responses;
pub mod background_task;
pub mod batches;
pub mod chat;
pub mod chat_store;
pub mod completions;
pub mod conversation_store;
pub mod conversations;
pub mod convert;
pub mod dialect;
pub mod disk;
pub mod docs;
pub mod embeddings;
pub mod error;
pub mod files;
pub mod infill;
pub mod input_text;
pub mod invocations;
pub mod list;
pub mod models;
pub mod native;
pub mod rerank;
pub mod response_builder;
pub mod response_events;
pub mod response_options;
pub mod response_parts;
pub mod response_record;
pub mod response_start;
pub mod response_store;
pub mod responses;
pub mod stored_chats;
pub mod stores;
pub mod stream;
pub mod tenant_lru;
pub mod tenant_quotas;
pub mod tokens;
pub mod truncation;
pub mod types;
pub mod unsupported;

#[cfg(test)]
mod tests;
