//! The error envelope that Anthropic's SDKs read.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesErrorBody {
    /// Always `error`
    #[serde(rename = "type")]
    #[schema(example = "error")]
    pub kind: String,
    pub error: MessagesError,
    /// The value of the `request-id` header.
    #[schema(required = true, example = "6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub request_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesError {
    #[serde(rename = "type")]
    #[schema(example = "not_found_error")]
    pub kind: String,
    #[schema(example = "the model `claude-9` does not exist")]
    pub message: String,
    /// Details that let a client react by itself. Only for fields that clients know how to do without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<MessagesErrorDetails>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MessagesErrorDetails {
    #[schema(example = "thread_unsupported_request")]
    pub error_code: String,
    pub unsupported: Vec<String>,
}
