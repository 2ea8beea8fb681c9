//! OpenAI's JSON as types. Requests are read by [`super::convert`] field by field, so that a wrong one can be named; the types document them.

pub mod chat;
pub mod common;
pub mod completions;
pub mod embeddings;
pub mod error;
pub mod logprobs;
pub mod models;
pub mod response_items;
pub mod responses;
pub mod structured;
pub mod tokens;
pub mod usage;
