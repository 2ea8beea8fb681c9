//! `/v1/embeddings`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::chat::Message;
use super::completions::Prompt;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "input": ["a river", "a mountain"]}))]
pub struct EmbeddingRequest {
    pub model: String,
    /// One or several inputs, as text or as token ids. Each becomes a vector. Either `input` or `messages` is required.
    pub input: Option<Prompt>,
    /// vLLM's field: a conversation, which the model's chat template makes one text of.
    pub messages: Option<Vec<Message>>,
    /// `float`, or `base64` of little-endian float32.
    #[schema(default = "float", pattern = "^(float|base64)$")]
    pub encoding_format: Option<String>,
    /// Keep this many leading elements of each vector and scale it to length 1 again.
    #[schema(minimum = 1)]
    pub dimensions: Option<u32>,
    /// vLLM's field: if false, vectors keep their length.
    #[schema(default = true)]
    pub normalize: Option<bool>,
    /// Keep only this many of an input's first tokens. -1 keeps as many as the context holds. If absent, an input that is too long is
    /// refused.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// Identifies the end user. Has no effect on the answer.
    pub user: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<EmbeddingObject>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingObject {
    #[schema(example = "embedding")]
    pub object: String,
    pub index: usize,
    pub embedding: Vector,
}

/// The vectors of `/pooling`, in vLLM's words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolingList {
    #[schema(example = "pool-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "list")]
    pub object: String,
    /// The time of creation [Unix seconds].
    pub created: u64,
    pub model: String,
    pub data: Vec<PoolingObject>,
    pub usage: EmbeddingUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolingObject {
    pub index: usize,
    #[schema(example = "pooling")]
    pub object: String,
    pub data: Vector,
}

/// A vector of length 1, unless `normalize` is false.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EmbeddingUsage {
    pub prompt_tokens: u32,
    pub total_tokens: u32,
}
