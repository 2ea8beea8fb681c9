//! What chat and text completions have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send one last chunk with the token counts; only with `stream`.
    #[serde(default)]
    pub include_usage: bool,
}

/// One text or up to four.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

/// How tokens are chosen and when a generation ends; an absent or null field has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Sampling {
    /// 0 is greedy.
    #[schema(minimum = 0, maximum = 2, default = 1.0)]
    pub temperature: Option<f64>,
    /// Sample from the likeliest tokens that hold this much probability together.
    #[schema(exclusive_minimum = 0, maximum = 1, default = 1.0)]
    pub top_p: Option<f64>,
    /// Sample from this many of the likeliest tokens; 0 and -1 are off.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Drop tokens less likely than this share of the likeliest one's probability; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// 1 is off.
    #[schema(exclusive_minimum = 0, maximum = 10)]
    pub repetition_penalty: Option<f64>,
    /// Token id (as a string) to a number from -100 to 100 that is added to its logit.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// The same seed, prompt and parameters give the same text. Absent: a random one.
    pub seed: Option<i64>,
    /// Texts that end the generation; they are not part of the output.
    pub stop: Option<Stop>,
    /// Token ids that end the generation.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Do not let the model's own end-of-text tokens end the generation.
    pub ignore_eos: Option<bool>,
    /// Neither stop tokens nor stop texts end the generation before this many tokens.
    pub min_tokens: Option<u32>,
    pub response_format: Option<super::structured::ResponseFormat>,
    /// An extension: a regular expression that the whole answer matches.
    pub regex: Option<String>,
    /// An extension: a grammar in Lark's syntax that the answer follows.
    pub grammar: Option<String>,
    /// An extension: the answer is one of these texts.
    pub choice: Option<Vec<String>>,
    /// Who asks. It does not change the answer; work on prompts that begin alike is shared between requests of one user only.
    pub user: Option<String>,
}

/// What chat and text completions have beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Generation {
    #[serde(flatten)]
    pub sampling: Sampling,
    /// Choices for a prompt: with a seed each has one of its own that follows from it, the first the seed itself.
    #[schema(minimum = 1, maximum = 16, default = 1)]
    pub n: Option<u8>,
    /// Send the answer in pieces, as server-sent events.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
}
