//! Anthropic's JSON, with its OpenAPI schema.

pub mod answer;
pub mod blocks;
pub mod error;
pub mod event;
pub mod models;
pub mod request;
pub mod tools;
