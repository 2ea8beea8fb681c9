//! How to generate, before it is known whether the model can.

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

#[derive(Clone, Debug)]
pub struct Options {
    pub sampling: SamplingParams,
    /// What the request chose of `sampling`: the model's defaults replace the other values. None: `sampling` is used as it is.
    pub chosen: Option<SamplingChoice>,
    pub budget: Budget,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// Do not end at the model's own end tokens.
    pub ignore_eos: bool,
    /// The form that the answer must have. Excludes `ignore_eos` and a least number of tokens.
    pub format: Option<Format>,
    /// The most tokens of reasoning before the answer.
    pub thinking_budget: Option<u32>,
    /// `Some(n)`: return each token's log-probability and the `n` likeliest alternatives at its position.
    pub logprobs: Option<u8>,
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
            ignore_eos: false,
            format: None,
            thinking_budget: None,
            logprobs: None,
            echo: false,
            prefix: Vec::new(),
            cache_salt: 0,
            client: Client::default(),
        }
    }
}
