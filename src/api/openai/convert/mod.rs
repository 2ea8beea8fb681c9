//! Conversion of OpenAI's JSON to domain requests, or to an error that names the field.

pub mod chat;
pub mod completions;
pub mod custom_tools;
mod drafts;
pub mod embeddings;
mod generation;
pub mod infill;
pub mod listed_tools;
pub mod metadata;
pub mod names;
pub mod native;
pub mod prompts;
mod reasoning;
pub mod refuse;
pub mod rerank;
pub mod response_input;
pub mod responses;
pub mod schemas;
pub mod stored_items;
pub mod structured;
pub mod tokens;
pub mod tool_shape;
pub mod tools;
mod verbosity;

use http::error::ApiError;
use http::fields::Fields;

/// Reads the `model` field.
pub fn model(fields: &Fields) -> Result<String, ApiError> {
    Ok(fields.required("model", fields.string("model")?)?.to_owned())
}
