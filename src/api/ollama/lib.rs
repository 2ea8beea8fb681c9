//! Ollama's dialect: the types on the wire, their conversion to domain requests, and a handler per endpoint.

pub mod answer_part;
pub mod blobs;
pub mod body;
pub mod chat;
pub mod convert;
pub mod dialect;
pub mod docs;
pub mod embed;
pub mod error;
pub mod generate;
pub mod lines;
pub mod load_requests;
pub mod make;
pub mod models;
pub mod names;
pub mod pull;
pub mod show;
pub mod start;
pub mod stream;
pub mod timing;
pub mod types;
pub mod unsupported;
