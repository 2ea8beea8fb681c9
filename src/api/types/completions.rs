//! `/v1/completions`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::Generation;
use super::logprobs::CompletionLogprobs;
use super::usage::Usage;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "prompt": "The longest river of Europe is", "max_tokens": 16, "temperature": 0}))]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Prompt,
    /// At most this many tokens are generated; 0 only with `echo`.
    #[schema(default = 16)]
    pub max_tokens: Option<u32>,
    /// Put the prompt before the answer; with `logprobs` its tokens, too.
    pub echo: Option<bool>,
    /// Tell how likely each token was, and so many of the likeliest in its place.
    #[schema(minimum = 0, maximum = 5)]
    pub logprobs: Option<u8>,
    /// Generate so many texts a prompt and return the `n` likeliest; not more than `n` with `stream`.
    #[schema(minimum = 1, maximum = 16)]
    pub best_of: Option<u8>,
    /// What follows the text that is asked for: the model fills in the middle. Only where its vocabulary has tokens for it.
    pub suffix: Option<String>,
    #[serde(flatten)]
    pub generation: Generation,
}

/// One prompt or several, as text or as token ids; each has choices of its own.
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
    /// The build, the model's digest and the backend: while it is the same, so are seeded answers.
    #[schema(example = "fp_0.1.0_5f3a0c9d1b2e_cpu")]
    pub system_fingerprint: String,
    /// In a stream only with `stream_options.include_usage`: null but on the last chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    /// Null unless they were asked for.
    #[schema(required = true)]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null in a stream until the choice ends.
    #[schema(required = true)]
    pub finish_reason: Option<String>,
}
