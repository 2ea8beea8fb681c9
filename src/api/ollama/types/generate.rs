//! `/api/generate`.

use serde::Serialize;
use utoipa::ToSchema;

use super::common::{End, Format, KeepAlive, Logprob, Think};
use super::options::Options;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaGenerateRequest, example = json!({"model": "smollm2:135m", "prompt": "What is the capital of France?", "stream": false,
    "options": {"num_predict": 16, "temperature": 0}}))]
pub struct GenerateRequest {
    /// An id or an alias, with or without `:latest`.
    pub model: String,
    /// The prompt. If it is empty, the model is loaded, or unloaded with `keep_alive: 0`.
    pub prompt: Option<String>,
    /// Pictures in base64, for a model with the capability `vision`. They stand before the prompt.
    pub images: Option<Vec<String>>,
    /// The text after the answer, so that the model fills in the middle. Only for models whose vocabulary has tokens for this.
    pub suffix: Option<String>,
    /// The system message.
    pub system: Option<String>,
    /// A Jinja chat template that replaces the model's own.
    pub template: Option<String>,
    /// The ids that an earlier answer returned. The prompt continues that conversation.
    pub context: Option<Vec<u32>>,
    /// Continue the prompt as it is, without the chat template.
    #[schema(default = false)]
    pub raw: Option<bool>,
    #[schema(default = true)]
    pub stream: Option<bool>,
    pub format: Option<Format>,
    pub think: Option<Think>,
    pub options: Option<Options>,
    pub keep_alive: Option<KeepAlive>,
    /// Return the log-probability of each token of the answer's text.
    pub logprobs: Option<bool>,
    /// With `logprobs`, also return the log-probabilities of this many of the likeliest tokens at each position.
    #[schema(minimum = 0, maximum = 20)]
    pub top_logprobs: Option<u8>,
}

/// An answer, or a piece of it with `stream`. The last piece has `done`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaGenerate)]
pub struct Generated {
    /// The model's name as the request gives it.
    pub model: String,
    #[schema(example = "2026-11-01T12:00:00.000000001Z")]
    pub created_at: String,
    pub response: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    pub done: bool,
    /// The ids of the prompt and of the answer, for the next request's `context`. Only in the last object, and not with `raw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<Logprob>>,
    #[serde(flatten)]
    pub end: End,
}
