//! The bodies of llama.cpp's own endpoints, `/completion`, `/infill` and `/embedding`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::Sampling;
use super::completions::Prompt;
use super::logprobs::{finite, text};
use chat::TokenLogprob;

/// What a request to `/completion` and one to `/infill` have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NativeOptions {
    /// The model. If absent, the first one that the server lists.
    pub model: Option<String>,
    /// The largest number of tokens to generate. If absent or -1, up to the end of the context.
    #[schema(minimum = -1)]
    pub n_predict: Option<i64>,
    /// Send the text piece by piece as server-sent events.
    pub stream: Option<bool>,
    /// Return the log-probability of each token of the answer, with this many of the likeliest tokens at its position. 0 switches it off.
    #[schema(minimum = 0, maximum = 20)]
    pub n_probs: Option<u8>,
    /// Return the token ids of the answer. A stream always has them.
    pub return_tokens: Option<bool>,
    /// Return only these members of the answer, each under the last part of its path, for example `timings/prompt_n`. A stream's pieces
    /// are not changed.
    pub response_fields: Option<Vec<String>>,
    /// llama.cpp's name of `repetition_penalty`.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub repeat_penalty: Option<f64>,
    /// 0 switches the penalties off. Otherwise they see the whole text, whatever the number is.
    #[schema(minimum = -1)]
    pub repeat_last_n: Option<i64>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"prompt": "The capital of France is", "n_predict": 8, "temperature": 0}))]
pub struct NativeCompletionRequest {
    /// One or several prompts, as text or as token ids. Each has a result of its own.
    pub prompt: Prompt,
    #[serde(flatten)]
    pub options: NativeOptions,
}

/// A text, or a piece of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeCompletion {
    /// The position of the prompt in the request.
    pub index: usize,
    pub content: String,
    /// The token ids of `content`, if the request asks for them.
    pub tokens: Vec<u32>,
    pub model: String,
    /// Whether this is the whole text, or the end of its stream.
    pub stop: bool,
    /// Tokens of the prompt.
    pub tokens_evaluated: u32,
    /// Generated tokens.
    pub tokens_predicted: u32,
    /// The tokens of `content`, if `n_probs` asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub completion_probabilities: Vec<NativeToken>,
    #[serde(flatten)]
    pub end: Option<NativeEnd>,
}

/// The facts that are known once the text is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeEnd {
    /// Tokens of the prompt that were found in the prefix cache.
    pub tokens_cached: u32,
    /// Always false: a prompt that is too long is refused.
    pub truncated: bool,
    /// Whether the text has a line break.
    pub has_new_line: bool,
    /// `eos`, `word` (a stop text) or `limit`
    #[schema(example = "eos")]
    pub stop_type: String,
    /// The stop text that ended the answer. Empty if none did.
    pub stopping_word: String,
    pub generation_settings: NativeSettings,
    pub timings: NativeTimings,
}

/// The settings that the text was generated with, after the model's defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeSettings {
    pub seed: u64,
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repeat_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub stop: Vec<String>,
    /// -1: up to the end of the context.
    pub n_predict: i64,
    pub n_probs: u8,
    pub ignore_eos: bool,
    pub stream: bool,
}

/// How long the parts of a request took. A rate is 0 if its time is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeTimings {
    pub cache_n: u32,
    pub prompt_n: u32,
    pub prompt_ms: f64,
    pub prompt_per_token_ms: f64,
    pub prompt_per_second: f64,
    pub predicted_n: u32,
    pub predicted_ms: f64,
    pub predicted_per_token_ms: f64,
    pub predicted_per_second: f64,
}

/// A token of the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeToken {
    pub id: u32,
    pub token: String,
    pub bytes: Vec<u8>,
    /// The log-probability in the model's own distribution, before penalties and temperature.
    pub logprob: f64,
    /// The likeliest tokens at this position. Empty within this list itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub top_logprobs: Vec<NativeToken>,
}

impl From<TokenLogprob> for NativeToken {
    fn from(token: TokenLogprob) -> Self {
        let of =
            |id, bytes: Vec<u8>, logprob, top_logprobs| Self { id, token: text(&bytes), bytes, logprob: finite(logprob), top_logprobs };
        let top = token.top.into_iter().map(|top| of(top.id, top.bytes, top.logprob, Vec::new())).collect();
        of(token.id, token.bytes, token.logprob.unwrap_or(f32::NEG_INFINITY), top)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"content": "The quick brown fox"}))]
pub struct NativeEmbeddingRequest {
    /// The model. If absent, the first one that the server lists.
    pub model: Option<String>,
    /// One or several texts, also as token ids.
    pub content: Prompt,
    /// The norm that vectors are scaled by: 2 for length 1, -1 for none.
    #[schema(default = 2)]
    pub embd_normalize: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeEmbeddingList(pub Vec<NativeEmbedding>);

/// The vector of a text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NativeEmbedding {
    /// The position of the text in the request.
    pub index: usize,
    /// One vector: the tokens of a text are always pooled.
    pub embedding: Vec<Vec<f32>>,
}
