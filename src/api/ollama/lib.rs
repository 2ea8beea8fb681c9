//! Ollama's dialect: the types on the wire, their conversion to domain requests, and one handler per endpoint.

pub mod body;
pub mod chat;
pub mod convert;
pub mod dialect;
pub mod docs;
pub mod embed;
pub mod error;
pub mod generate;
pub mod life;
pub mod lines;
pub mod models;
pub mod names;
pub mod pull;
pub mod refused;
pub mod said;
pub mod show;
pub mod start;
pub mod stream;
pub mod timing;
pub mod types;
