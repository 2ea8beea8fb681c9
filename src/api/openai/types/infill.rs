//! `/infill`, in llama.cpp's words.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::common::Sampling;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"model": "qwen2.5-coder:0.5b", "input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))",
    "n_predict": 16, "temperature": 0}))]
pub struct InfillRequest {
    /// The model. If absent, the first one that the server lists.
    pub model: Option<String>,
    /// The text before the gap.
    pub input_prefix: Option<String>,
    /// The text after the gap.
    pub input_suffix: Option<String>,
    /// Other files of the same work. If the context has no room for all, the first ones are left out.
    pub input_extra: Option<Vec<InfillFile>>,
    /// The text with which the gap begins. The answer continues it.
    pub prompt: Option<String>,
    /// The largest number of tokens to generate. If absent or -1, up to the end of the context.
    #[schema(minimum = -1)]
    pub n_predict: Option<i64>,
    /// Send the text piece by piece as server-sent events.
    pub stream: Option<bool>,
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// A file that the model sees before the gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfillFile {
    pub filename: Option<String>,
    pub text: String,
}

/// The text in the gap, or a piece of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Infilled {
    pub index: usize,
    pub content: String,
    /// Always empty.
    pub tokens: Vec<u32>,
    pub model: String,
    /// Whether this is the whole text, or the end of a stream.
    pub stop: bool,
    /// Tokens of the prompt.
    pub tokens_evaluated: u32,
    /// Generated tokens.
    pub tokens_predicted: u32,
    #[serde(flatten)]
    pub end: Option<InfillEnd>,
}

/// The facts that are known once the text is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfillEnd {
    /// Tokens of the prompt that were found in the prefix cache.
    pub tokens_cached: u32,
    /// Always false: a prompt that is too long is refused.
    pub truncated: bool,
    /// `eos`, `word` (a stop text) or `limit`
    #[schema(example = "eos")]
    pub stop_type: String,
    /// The stop text that ended the answer. Empty if none did.
    pub stopping_word: String,
    pub timings: InfillTimings,
}

/// How long the parts of a request took. A rate is 0 if its time is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfillTimings {
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
