//! `/v1/completions`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::{Generation, StopReason};
use super::logprobs::{CompletionLogprobs, PromptLogprobs};
use super::usage::Usage;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "prompt": "The longest river of Europe is", "max_tokens": 16, "temperature": 0}))]
pub struct CompletionRequest {
    pub model: String,
    pub prompt: Prompt,
    /// The largest number of tokens to generate. 0 is allowed only with `echo`.
    #[schema(minimum = -1, default = 16)]
    pub max_tokens: Option<i64>,
    /// Return the prompt before the answer. With `logprobs`, also the log-probabilities of the prompt's tokens.
    pub echo: Option<bool>,
    /// Return the log-probability of each token, with this many of the likeliest tokens at its position.
    #[schema(minimum = 0, maximum = 5)]
    pub logprobs: Option<u8>,
    /// Generate this many texts per prompt and return the `n` likeliest. With `stream`, at most `n`.
    #[schema(minimum = 1, maximum = 16)]
    pub best_of: Option<u8>,
    /// The text after the answer, so that the model fills in the middle. Only for models whose vocabulary has tokens for this.
    pub suffix: Option<String>,
    #[serde(flatten)]
    pub generation: Generation,
}

/// One or several prompts, as text or as token ids. Each prompt has its own choices.
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
    /// The time of creation [Unix seconds].
    pub created: u64,
    pub model: String,
    pub choices: Vec<CompletionChoice>,
    /// Identifies the build, the model's digest and the backend. Answers with the same seed and the same fingerprint are the same.
    #[schema(example = "fp_0.1.0_5f3a0c9d1b2e_cpu")]
    pub system_fingerprint: String,
    /// In a stream, only with `stream_options.include_usage`, and null on every chunk except the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub usage: Option<Option<Usage>>,
    /// Random characters. Only with `stream_options.include_obfuscation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obfuscation: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionChoice {
    pub index: usize,
    pub text: String,
    /// Null unless the request asks for log-probabilities.
    #[schema(required = true)]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`. Null in a stream until the choice ends.
    #[schema(required = true)]
    pub finish_reason: Option<String>,
    /// The stop text or the id in `stop_token_ids` that ended the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The tokens of the answer. Only with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// The tokens of the prompt. Only with `return_token_ids`. In a stream, in the first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Only with `prompt_logprobs`. For each token of the prompt except the first, which has null: the likeliest tokens at its position and
    /// the token itself, by their ids. Each has `logprob`, `rank` and `decoded_token`. The rank is null for a prompt token that is not
    /// among the likeliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}
