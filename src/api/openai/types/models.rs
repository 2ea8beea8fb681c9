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
    /// What a request that leaves these values open is sampled with. Null until the model is loaded.
    #[schema(required = true)]
    pub sampling: Option<ModelSampling>,
}

/// The values that the model or its entry in the configuration brings. One that is absent has the default of its field.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelSampling {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<Model>,
}
