//! OpenAI's dialect: the types on the wire, their conversion to domain requests, and one handler per endpoint.

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
pub mod extras;
pub mod files;
pub mod input_text;
pub mod kept;
pub mod list;
pub mod live;
pub mod models;
pub mod rerank;
pub mod response_background;
pub mod response_draft;
pub mod response_events;
pub mod response_parts;
pub mod response_record;
pub mod response_start;
pub mod responses;
pub mod shares;
pub mod shelves;
pub mod store;
pub mod stored_chats;
pub mod stream;
pub mod tokens;
pub mod truncation;
pub mod types;

#[cfg(test)]
mod tests;
