//! `/v1/models`, health and version.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Model {
    #[schema(example = "smollm2:135m")]
    pub id: String,
    #[schema(example = "model")]
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    #[schema(example = "penstock")]
    pub owned_by: String,
    /// The longest context served, in tokens; null until the model is loaded.
    #[schema(required = true)]
    pub max_model_len: Option<usize>,
    pub loaded: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<Model>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `ok`, `ready`, `loading`, `draining` or `engine stopped`
    #[schema(example = "ok")]
    pub status: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Version {
    #[schema(example = "0.1.0")]
    pub version: String,
}
