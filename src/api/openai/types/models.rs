//! `/v1/models`.

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
    /// The model whose weights it has: itself, or the one that it is a variant of.
    #[schema(example = "smollm2:135m")]
    pub root: String,
    /// The model that it is a variant of.
    #[schema(required = true)]
    pub parent: Option<String>,
    /// The context length in tokens. Null until the model is loaded.
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
