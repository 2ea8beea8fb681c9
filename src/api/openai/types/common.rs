//! Types that chat and text completions share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send a last chunk with the token counts. Only with `stream`.
    #[serde(default)]
    pub include_usage: bool,
    /// An extension: until the first token, send chunks that report the prompt's progress. Chat only, with `stream`.
    #[serde(default)]
    pub include_progress: bool,
    /// With `include_usage`: add the token counts so far to every chunk.
    #[serde(default)]
    pub continuous_usage_stats: bool,
    /// Add random characters to every chunk, so that its size does not reveal the length of its text.
    #[serde(default)]
    pub include_obfuscation: bool,
}

/// A stop text, or the id of a stop token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(u32),
}

/// One text, or a list of up to four.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

/// An adapter (LoRA) of a request, named by its `id` in `/lora-adapters` or by its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoraChoice {
    pub id: Option<u32>,
    pub name: Option<String>,
    /// The factor of its changes. 0 switches it off.
    #[schema(minimum = -1000, maximum = 1000)]
    pub scale: f64,
}

/// How the server chooses tokens, and when a generation ends. An absent or null field has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sampling {
    /// 0 means greedy sampling.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub temperature: Option<f64>,
    /// Sample from the smallest set of likeliest tokens whose probabilities add up to this value. The set has at least one token.
    #[schema(minimum = 0, maximum = 1, default = 1.0)]
    pub top_p: Option<f64>,
    /// Sample from this many of the likeliest tokens. 0 and -1 switch this off.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Drop tokens whose probability is below this share of the likeliest token's. 0 switches this off.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// 1 switches this off.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub repetition_penalty: Option<f64>,
    /// Maps token ids (as strings) to numbers from -100 to 100, which are added to the logits of those tokens.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// The same seed, prompt and parameters give the same text. If absent, the seed is random.
    pub seed: Option<i64>,
    /// Texts that end the generation. They are not included in the output.
    pub stop: Option<Stop>,
    /// Token ids that end the generation.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Continue past the model's own end-of-text tokens.
    pub ignore_eos: Option<bool>,
    /// Generate at least this many tokens before a stop token or a stop text may end the generation.
    pub min_tokens: Option<u32>,
    pub response_format: Option<super::structured::ResponseFormat>,
    /// An extension: a regular expression that the whole answer matches.
    pub regex: Option<String>,
    /// An extension: a grammar in Lark's syntax that the answer follows.
    pub grammar: Option<String>,
    /// An extension: the answer is one of these texts.
    pub choice: Option<Vec<String>>,
    /// An extension: the answer is JSON that follows this schema.
    #[schema(value_type = Option<Object>)]
    pub json_schema: Option<Value>,
    /// vLLM's form of requesting a format.
    pub structured_outputs: Option<super::structured::StructuredOutputs>,
    /// The adapters of the request, in the order in which they are added, instead of those of the model's name. All others have the
    /// scale 0.
    #[schema(max_items = 8)]
    pub lora: Option<Vec<LoraChoice>>,
    /// Identifies the end user. Has no effect on the answer. Only requests of the same user share the prefix cache.
    pub user: Option<String>,
    /// Only requests with the same salt share the prefix cache. Has no effect on the answer.
    pub cache_salt: Option<String>,
}

/// Fields that chat and text completions share, in addition to [`Sampling`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Generation {
    #[serde(flatten)]
    pub sampling: Sampling,
    /// The number of choices per prompt. With `seed`, the first choice uses that seed, and each other choice uses one derived from it.
    #[schema(minimum = 1, maximum = 16, default = 1)]
    pub n: Option<u8>,
    /// Send the answer piece by piece as server-sent events.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// llama.cpp's name of the most drafted tokens per step. 0 switches drafts off. Never changes the answer.
    #[serde(rename = "speculative.n_max")]
    pub speculative_n_max: Option<u32>,
    /// llama.cpp's name of the fewest drafted tokens per step. Shorter drafts are not run.
    #[serde(rename = "speculative.n_min")]
    pub speculative_n_min: Option<u32>,
    /// llama.cpp's name of the least probability that a drafted token is right, as far as the answer's earlier drafts tell.
    #[serde(rename = "speculative.p_min")]
    #[schema(minimum = 0, maximum = 1)]
    pub speculative_p_min: Option<f64>,
    /// An extension: if a stop text ends the answer, keep that text.
    pub include_stop_str_in_output: Option<bool>,
    /// An extension: if false, show the texts of control tokens in the answer.
    #[schema(default = true)]
    pub skip_special_tokens: Option<bool>,
    /// An extension: keep only this many tokens at the end of the prompt. -1 keeps as many as the context holds. If absent, a prompt that
    /// is too long is refused.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// An extension: return the log-probability of each token of the prompt, with this many of the likeliest tokens at its position. Not
    /// with `stream`.
    #[schema(minimum = 0, maximum = 20)]
    pub prompt_logprobs: Option<u8>,
    /// An extension: return the token ids of the prompt and of the answer.
    pub return_token_ids: Option<bool>,
    /// An extension: name the tokens of log-probabilities as `token_id:` followed by the id. Has no effect without `logprobs`.
    pub return_tokens_as_token_ids: Option<bool>,
    /// An extension: the answer consists of these token ids only.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// An extension: texts whose token sequences never occur in the answer.
    pub bad_words: Option<Vec<String>>,
}
