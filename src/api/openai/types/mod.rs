//! OpenAI's JSON as types. Request types serve as documentation only: [`super::convert`] reads a request field by field, so that an error
//! names the wrong field.

pub mod adapters;
pub mod batches;
pub mod chat;
pub mod common;
pub mod completions;
pub mod conversations;
pub mod embeddings;
pub mod error;
pub mod files;
pub mod infill;
pub mod logprobs;
pub mod models;
pub mod native;
pub mod rerank;
pub mod response_items;
pub mod responses;
pub mod structured;
pub mod template;
pub mod tokens;
pub mod tools;
pub mod usage;
