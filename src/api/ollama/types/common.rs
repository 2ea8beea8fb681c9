//! Types that several endpoints share.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaError)]
pub struct ErrorBody {
    #[schema(example = "model 'gpt-9' not found")]
    pub error: String,
}

/// The end of an answer, in its last object. Durations are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaEnd)]
pub struct End {
    /// `stop`, `length`, `load` or `unload`
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "stop")]
    pub done_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<u64>,
    /// The time until the model was available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_duration: Option<u64>,
    /// Tokens of the prompt, including those found in the prefix cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_eval_duration: Option<u64>,
    /// Generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_duration: Option<u64>,
}

/// Seconds, or a duration such as `5m` or `1h30m`. If negative, the model stays loaded until another one needs the memory. If 0, it stays
/// until its requests have ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaKeepAlive)]
pub enum KeepAlive {
    Seconds(f64),
    Duration(String),
}

/// `json` for any JSON object, or a JSON schema.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaFormat)]
pub enum Format {
    Name(String),
    #[schema(value_type = Object)]
    Schema(Map<String, Value>),
}

/// Whether to reason before the answer, or a level that the model's template knows, such as `low`, `medium` or `high`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaThink)]
pub enum Think {
    Switch(bool),
    Level(String),
}

/// A token of an answer with its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaLogprob)]
pub struct Logprob {
    #[serde(flatten)]
    pub token: TokenProbability,
    /// The likeliest tokens at this position.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub top_logprobs: Vec<TokenProbability>,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaTokenProbability)]
pub struct TokenProbability {
    pub token: String,
    /// The log-probability in the model's own distribution, before penalties and temperature.
    pub logprob: f64,
    pub bytes: Vec<u8>,
}
