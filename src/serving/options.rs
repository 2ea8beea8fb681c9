//! How to generate, before it is known whether the model can.

use std::sync::Arc;

use chat::Format;
use logits::{SamplingChoice, SamplingParams};
use scheduler::Client;

/// How many tokens may be generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// As many as the context has left.
    Rest,
    /// At most this many, and fewer if the context ends sooner. A default that the client did not ask for.
    Default(u32),
    /// At most this many, and fewer if the context ends sooner. The client asked for them.
    Explicit(u32),
    /// At most this many, for which the context must have room. The client asked for them.
    Strict(u32),
}

impl Budget {
    /// The number of tokens that the client asked for.
    pub fn asked(self) -> Option<u32> {
        match self {
            Self::Rest | Self::Default(_) => None,
            Self::Explicit(count) | Self::Strict(count) => Some(count),
        }
    }
}

/// How many tokens of a long prompt are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncate {
    /// At most this many.
    To(usize),
    /// As many as the context holds beside the answer.
    ToContext,
}

impl Truncate {
    /// The most tokens, but for the context.
    pub fn most(self) -> usize {
        match self {
            Self::To(most) => most,
            Self::ToContext => usize::MAX,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Options {
    pub sampling: SamplingParams,
    /// What the request chose of `sampling`: the model's defaults replace the other values. None: `sampling` is used as it is.
    pub chosen: Option<SamplingChoice>,
    pub budget: Budget,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// A text that a stop text ends keeps it.
    pub keep_stop: bool,
    /// Show the names of control tokens in the answer.
    pub show_control: bool,
    /// Keep so many tokens at the end of a prompt that has more. None: a prompt that does not fit is refused.
    pub truncate: Option<Truncate>,
    /// Which ids the answer may consist of. None: any.
    pub allowed_ids: Option<Vec<u32>>,
    /// Texts that must not occur in the answer, token for token.
    pub bad_words: Vec<String>,
    /// Return the ids of the prompt and of the answer.
    pub return_ids: bool,
    /// A chat template in place of the model's own.
    pub template: Option<Arc<str>>,
    /// Do not end at the model's own end tokens.
    pub ignore_eos: bool,
    /// The form that the answer must have. Excludes `ignore_eos` and a least number of tokens.
    pub format: Option<Format>,
    /// The most tokens of reasoning before the answer.
    pub thinking_budget: Option<u32>,
    /// `Some(n)`: return each token's log-probability and the `n` likeliest alternatives at its position.
    pub logprobs: Option<u8>,
    /// `Some(n)`: return the log-probability of every prompt token except the first, with the `n` likeliest at its position.
    pub prompt_logprobs: Option<u8>,
    /// Return the prompt. With `logprobs`, also return those of its tokens.
    pub echo: bool,
    /// Token ids before a conversation's prompt.
    pub prefix: Vec<u32>,
    /// Prompts with a common beginning share work only under the same salt.
    pub cache_salt: u64,
    pub client: Client,
}

impl Options {
    /// Options that ask for nothing else.
    pub fn new(sampling: SamplingParams, budget: Budget) -> Self {
        Self {
            sampling,
            chosen: None,
            budget,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            keep_stop: false,
            show_control: false,
            truncate: None,
            allowed_ids: None,
            bad_words: Vec::new(),
            return_ids: false,
            template: None,
            ignore_eos: false,
            format: None,
            thinking_budget: None,
            logprobs: None,
            prompt_logprobs: None,
            echo: false,
            prefix: Vec::new(),
            cache_salt: 0,
            client: Client::default(),
        }
    }
}
