//! Ollama's JSON as types. Request types serve as documentation only: [`super::convert`] reads a request field by field, so that an error
//! names the wrong field.

pub mod chat;
pub mod common;
pub mod embed;
pub mod generate;
pub mod make;
pub mod models;
pub mod options;
