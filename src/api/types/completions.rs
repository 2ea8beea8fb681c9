//! `/v1/completions`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::common::Generation;
use super::usage::Usage;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "prompt": "The longest river of Europe is", "max_tokens": 16, "temperature": 0}))]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Prompt,
    /// At most this many tokens are generated; 0 only with `echo`.
    #[schema(default = 16)]
    pub max_tokens: Option<u32>,
    /// Put the prompt before the answer.
    pub echo: Option<bool>,
    #[serde(flatten)]
    pub generation: Generation,
}

/// One prompt or several, as text or as token ids; each is a choice of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Prompt {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Completion {
    #[schema(example = "cmpl-6f1b0a9c4f5e4d0c8f3f5a3f0d1c2b4a")]
    pub id: String,
    #[schema(example = "text_completion")]
    pub object: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    pub choices: Vec<CompletionChoice>,
    /// In a stream only with `stream_options.include_usage`: null but on the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    /// Always null: not supported yet.
    #[schema(required = true, value_type = Option<Object>)]
    pub logprobs: Option<Value>,
    /// `stop` or `length`; null in a stream until the choice ends.
    #[schema(required = true)]
    pub finish_reason: Option<String>,
}
