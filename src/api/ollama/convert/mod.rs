//! Conversion of Ollama's JSON to domain requests, or to an error that names the field.

pub mod chat;
pub mod common;
pub mod duration;
pub mod embed;
pub mod generate;
pub mod keep_alive;
pub mod make;
pub mod messages;
pub mod model;
pub mod options;
pub mod schemas;
pub mod tools;
