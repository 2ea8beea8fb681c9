//! Wire → domain: OpenAI's JSON into what `serving` understands, or an error that names the field.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod generation;
pub mod prompts;
pub mod refuse;
pub mod response_input;
pub mod responses;
pub mod structured;
pub mod tokens;
pub mod tools;

use super::error::{ApiError, Kind, quoted};
use super::fields::Fields;
use crate::registry::RegistryError;
use crate::serving::{GrammarError, RequestError, SubmitError};

/// The `model` field.
pub fn model(fields: &Fields) -> Result<String, ApiError> {
    Ok(fields.required("model", fields.string("model")?)?.to_owned())
}

/// Errors of a request that the model refuses; `source` is the field that holds the text, `messages` or `prompt`.
pub fn request_error(error: RequestError, source: &str) -> ApiError {
    let message = error.to_string();
    match error {
        RequestError::Context { .. } | RequestError::TooLong { .. } => {
            ApiError::new(Kind::ContextLength, format!("context_length_exceeded: {message}")).with_param(source)
        }
        RequestError::Vocabulary { field: "prompt" | "input", .. } | RequestError::Empty | RequestError::Template(_) => {
            ApiError::field(source, message)
        }
        RequestError::Vocabulary { field, .. } => ApiError::field(field, message),
        RequestError::NoTemplate(_) | RequestError::NoEmbedding(_) => ApiError::field("model", message),
        RequestError::Grammar { error: GrammarError::Busy, .. } => ApiError::new(Kind::QueueFull, message),
        RequestError::Grammar { field, .. } => ApiError::field(field, message),
        RequestError::NoEffort { field, .. } => ApiError::field(field, message),
        RequestError::NoInfill(_) => ApiError::field("suffix", message),
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let kind = match error {
            SubmitError::QueueFull => Kind::QueueFull,
            SubmitError::Stopped => Kind::EngineStopped,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        match &error {
            RegistryError::NotFound(id) => model_not_found(id),
            RegistryError::Loading(_) => Self::new(Kind::ModelLoading, error.to_string()),
            RegistryError::LoadFailed { .. } => Self::new(Kind::ModelFailed, error.to_string()),
        }
    }
}

pub fn model_not_found(id: &str) -> ApiError {
    ApiError::new(Kind::ModelNotFound, format!("the model `{}` does not exist", quoted(id))).with_param("model")
}
