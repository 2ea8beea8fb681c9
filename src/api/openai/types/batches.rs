//! `/v1/batches`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"input_file_id": "file-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a",
    "endpoint": "/v1/chat/completions", "completion_window": "24h"}))]
pub struct BatchRequest {
    /// A file with the purpose `batch`. Each line has `custom_id`, `method`, `url` and `body`.
    pub input_file_id: String,
    /// `/v1/chat/completions`, `/v1/completions`, `/v1/embeddings` or `/v1/responses`
    pub endpoint: String,
    /// The time that the batch may take: `24h`, or another number with `s`, `m`, `h` or `d`, at most 30 days.
    #[schema(pattern = "^[0-9]{1,7}[smhd]$", example = "24h")]
    pub completion_window: String,
    /// Up to 16 texts, which the batch returns unchanged.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// When the output files are deleted. If absent, after `storage.batch_days`.
    pub output_expires_after: Option<ExpiresAfter>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExpiresAfter {
    /// Always `created_at`
    #[schema(example = "created_at")]
    pub anchor: String,
    #[schema(minimum = 3600, maximum = 2592000)]
    pub seconds: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchObject {
    #[schema(example = "batch_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "batch")]
    pub object: String,
    pub endpoint: String,
    /// Why the batch failed. No line was run in that case.
    #[schema(required = true)]
    pub errors: Option<BatchErrors>,
    pub input_file_id: String,
    pub completion_window: String,
    /// `validating`, `failed`, `in_progress`, `finalizing`, `completed`, `expired`, `cancelling` or `cancelled`
    pub status: String,
    /// The answers, one per line, in the order in which they ended.
    #[schema(required = true)]
    pub output_file_id: Option<String>,
    /// The lines that failed.
    #[schema(required = true)]
    pub error_file_id: Option<String>,
    /// The time of creation [Unix seconds]. All other times have the same unit.
    pub created_at: u64,
    #[schema(required = true)]
    pub in_progress_at: Option<u64>,
    #[schema(required = true)]
    pub expires_at: Option<u64>,
    #[schema(required = true)]
    pub finalizing_at: Option<u64>,
    #[schema(required = true)]
    pub completed_at: Option<u64>,
    #[schema(required = true)]
    pub failed_at: Option<u64>,
    #[schema(required = true)]
    pub expired_at: Option<u64>,
    #[schema(required = true)]
    pub cancelling_at: Option<u64>,
    #[schema(required = true)]
    pub cancelled_at: Option<u64>,
    pub request_counts: RequestCounts,
    #[schema(required = true, value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RequestCounts {
    pub total: usize,
    pub completed: usize,
    pub failed: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchErrors {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<BatchError>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchError {
    pub code: String,
    pub message: String,
    /// The field of the line that is wrong.
    #[schema(required = true)]
    pub param: Option<String>,
    /// The number of the line, from 1. Null if the error is about the whole file.
    #[schema(required = true)]
    pub line: Option<usize>,
}

/// A line of an output or error file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchLine {
    #[schema(example = "batch_req_6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    pub custom_id: String,
    /// The endpoint's response. Null if the line was never run.
    #[schema(required = true)]
    pub response: Option<LineResponse>,
    #[schema(required = true)]
    pub error: Option<LineError>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LineResponse {
    pub status_code: u16,
    pub request_id: String,
    /// The body of the endpoint's response.
    #[schema(value_type = Object)]
    pub body: Value,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LineError {
    pub code: String,
    pub message: String,
}
