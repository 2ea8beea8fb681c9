//! `/v1/models`, in the form that Anthropic's clients read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A model, for a request with the header `anthropic-version`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesModel {
    /// Always `model`
    #[serde(rename = "type")]
    #[schema(example = "model")]
    pub kind: String,
    #[schema(example = "smollm2:135m")]
    pub id: String,
    #[schema(example = "smollm2:135m")]
    pub display_name: String,
    /// The time of creation, in RFC 3339.
    #[schema(example = "2026-11-23T12:00:00Z")]
    pub created_at: String,
    /// Always `active`
    #[schema(example = "active")]
    pub lifecycle: String,
    /// The context length [tokens]. Null until the model is loaded.
    #[schema(required = true)]
    pub max_input_tokens: Option<usize>,
    /// The most tokens of an answer. Null until the model is loaded.
    #[schema(required = true)]
    pub max_tokens: Option<usize>,
}

/// A page of the list of models, for a request with the header `anthropic-version`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesModelList {
    pub data: Vec<MessagesModel>,
    pub has_more: bool,
    #[schema(required = true)]
    pub first_id: Option<String>,
    #[schema(required = true)]
    pub last_id: Option<String>,
}
