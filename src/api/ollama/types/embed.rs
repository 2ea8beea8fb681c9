//! `/api/embed` and the older `/api/embeddings`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::KeepAlive;
use super::options::Options;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbedRequest, example = json!({"model": "smollm2:135m", "input": ["a river", "a mountain"]}))]
pub struct EmbedRequest {
    /// An id or an alias, with or without `:latest`.
    pub model: String,
    pub input: EmbedInput,
    /// Cut texts that are longer than the context at their end. If false, such texts are refused.
    #[schema(default = true)]
    pub truncate: Option<bool>,
    /// Keep this many leading elements of each vector and scale it to length 1 again. 0 keeps all.
    pub dimensions: Option<u32>,
    pub options: Option<Options>,
    pub keep_alive: Option<KeepAlive>,
}

/// One or several texts. Each becomes a vector.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaEmbedInput)]
pub enum EmbedInput {
    One(String),
    Several(Vec<String>),
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbed)]
pub struct Embedded {
    /// The model's name as the request gives it.
    pub model: String,
    /// One vector of length 1 per text.
    pub embeddings: Vec<Vec<f32>>,
    /// The total time [ns].
    pub total_duration: u64,
    /// The time until the model was available [ns].
    pub load_duration: u64,
    /// Tokens of all texts.
    pub prompt_eval_count: u32,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddingsRequest, example = json!({"model": "smollm2:135m", "prompt": "a river"}))]
pub struct EmbeddingsRequest {
    /// An id or an alias, with or without `:latest`.
    pub model: String,
    /// The text. If it is empty, the model is only loaded.
    pub prompt: Option<String>,
    pub options: Option<Options>,
    pub keep_alive: Option<KeepAlive>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaEmbeddings)]
pub struct OneEmbedding {
    /// A vector of length 1. Empty without a text.
    pub embedding: Vec<f32>,
}
