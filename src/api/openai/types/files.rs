//! `/v1/files`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an upload consists of, as `multipart/form-data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileUpload {
    #[schema(value_type = String, format = Binary)]
    pub file: String,
    /// `batch`, `user_data`, `assistants`, `evals`, `fine-tune` or `vision`. Only files for batches are read by the server.
    #[schema(example = "batch")]
    pub purpose: String,
    /// `created_at`
    #[serde(rename = "expires_after[anchor]")]
    pub anchor: Option<String>,
    /// From an hour to 30 days.
    #[serde(rename = "expires_after[seconds]")]
    #[schema(minimum = 3600, maximum = 2592000)]
    pub seconds: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileObject {
    #[schema(example = "file-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "file")]
    pub object: String,
    pub bytes: u64,
    /// Unix seconds.
    pub created_at: u64,
    /// When the server deletes the file. Null: when a client does.
    #[schema(required = true)]
    pub expires_at: Option<u64>,
    #[schema(example = "requests.jsonl")]
    pub filename: String,
    /// As uploaded, or `batch_output`.
    #[schema(example = "batch")]
    pub purpose: String,
    /// Always `processed`.
    #[schema(example = "processed")]
    pub status: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletedFile {
    pub id: String,
    #[schema(example = "file")]
    pub object: String,
    pub deleted: bool,
}
