//! The error envelope that OpenAI's SDKs read. All four fields are always present.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    #[schema(example = "the model `gpt-9` does not exist")]
    pub message: String,
    #[serde(rename = "type")]
    #[schema(example = "invalid_request_error")]
    pub kind: String,
    /// The field of the request that caused the error.
    #[schema(required = true, example = "model")]
    pub param: Option<String>,
    #[schema(required = true, example = "model_not_found")]
    pub code: Option<String>,
}
