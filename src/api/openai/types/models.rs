//! `/v1/models`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Model {
    #[schema(example = "smollm2:135m")]
    pub id: String,
    #[schema(example = "model")]
    pub object: String,
    /// The time of creation [Unix seconds].
    pub created: u64,
    #[schema(example = "penstock")]
    pub owned_by: String,
    /// The model that owns the weights: this one, or the one that it is a variant of. For an adapter, its file or folder, whose place on
    /// the server only clients learn that may manage models.
    #[schema(example = "smollm2:135m")]
    pub root: String,
    /// The model that this one is a variant of, or whose weights its adapter changes.
    #[schema(required = true)]
    pub parent: Option<String>,
    /// The use of the model: `chat`, `completion` (a base model, which continues texts) or `embedding`. Null if its file is not on disk.
    #[schema(required = true, example = "chat")]
    pub kind: Option<String>,
    /// What prompts may hold: `text`, and `image` if the model sees pictures.
    #[schema(example = json!(["text"]))]
    pub input_modalities: Vec<String>,
    /// The context length [tokens]. Null until the model is loaded.
    #[schema(required = true)]
    pub max_model_len: Option<usize>,
    pub loaded: bool,
    /// The sampling values for requests that leave them open. Null until the model is loaded.
    #[schema(required = true)]
    pub sampling: Option<ModelSampling>,
    /// The model's sizes. Null if its file is not on disk.
    #[schema(required = true)]
    pub meta: Option<ModelSizes>,
}

/// The sizes of a model, as its file tells them and as llama.cpp names them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModelSizes {
    /// The number of weights.
    #[schema(example = 134515008)]
    pub n_params: u64,
    /// The size of the file [bytes].
    #[schema(example = 144811904)]
    pub size: u64,
    /// The longest context that it was made for [tokens].
    #[schema(required = true, example = 8192)]
    pub n_ctx_train: Option<u64>,
    /// The number of elements of a token's embedding.
    #[schema(required = true, example = 576)]
    pub n_embd: Option<u64>,
}

/// The values set by the model or by its entry in the configuration. An absent value has the default of its field.
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
