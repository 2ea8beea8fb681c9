//! `/v1/files`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The parts of an upload, as `multipart/form-data`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileUpload {
    #[schema(value_type = String, format = Binary)]
    pub file: String,
    /// `batch`, `user_data`, `assistants`, `evals`, `fine-tune` or `vision`. The server itself reads only files for batches.
    #[schema(example = "batch")]
    pub purpose: String,
    /// Always `created_at`
    #[serde(rename = "expires_after[anchor]")]
    pub anchor: Option<String>,
    /// The time until the file is deleted, from an hour to 30 days [s].
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
    /// The time of creation [Unix seconds].
    pub created_at: u64,
    /// When the server deletes the file. Null if only a client deletes it.
    #[schema(required = true)]
    pub expires_at: Option<u64>,
    #[schema(example = "requests.jsonl")]
    pub filename: String,
    /// The purpose given at upload, or `batch_output`.
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
