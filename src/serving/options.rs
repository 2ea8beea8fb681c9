//! Options of a generation, before they are checked against a model.

use std::sync::Arc;

use chat::Format;
use logits::{SamplingChoice, SamplingParams};
use scheduler::Client;

/// The number of tokens to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// The rest of the context.
    Rest,
    /// At most this many, or the rest of the context if that is less. A default that the client did not choose.
    Default(u32),
    /// At most this many, or the rest of the context if that is less. Chosen by the client.
    Explicit(u32),
    /// At most this many. The context must have room for all of them. Chosen by the client.
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

/// How far a long prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncate {
    /// To at most this many tokens.
    To(usize),
    /// To the part of the context that the answer leaves.
    ToContext,
}

impl Truncate {
    /// The most tokens that are kept, apart from the context's limit.
    pub fn most(self) -> usize {
        match self {
            Self::To(most) => most,
            Self::ToContext => usize::MAX,
        }
    }
}

/// The bounds that a request sets on drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftLimits {
    /// The most drafts per step. None: the scheduler's own bound. 0: none.
    pub most: Option<u32>,
    /// Fewer drafts than this are not run.
    pub fewest: u32,
    /// A draft ends before a token that is less likely to be right than this.
    pub least_probability: f32,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub sampling: SamplingParams,
    /// The values of `sampling` that the request chose. The model's defaults replace the others. None: `sampling` is used as it is.
    pub chosen: Option<SamplingChoice>,
    pub budget: Budget,
    /// The text that the client expects as the answer.
    pub prediction: Option<String>,
    pub drafts: DraftLimits,
    /// Texts that end the generation.
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    /// Keep the stop text at the end of the answer.
    pub keep_stop: bool,
    /// Show the names of control tokens in the answer.
    pub show_control: bool,
    /// Cut a longer prompt, and keep its end. None: a prompt that does not fit is refused.
    pub truncate: Option<Truncate>,
    /// The ids that the answer may contain. None: any.
    pub allowed_ids: Option<Vec<u32>>,
    /// Texts that must not occur in the answer, token for token.
    pub bad_words: Vec<String>,
    /// Return the ids of the prompt and of the answer.
    pub return_ids: bool,
    /// A chat template in place of the model's own.
    pub template: Option<Arc<str>>,
    /// Do not end at the model's own end tokens.
    pub ignore_eos: bool,
    /// The format that the answer must have. Excludes `ignore_eos` and a least number of tokens.
    pub format: Option<Format>,
    /// The most tokens of reasoning before the answer.
    pub thinking_budget: Option<u32>,
    /// `Some(n)`: return each token's log-probability and the `n` likeliest alternatives at its position.
    pub logprobs: Option<u8>,
    /// `Some(n)`: return the log-probability of every prompt token except the first, with the `n` likeliest alternatives at its position.
    pub prompt_logprobs: Option<u8>,
    /// Return the prompt. With `logprobs`, also return the log-probabilities of its tokens.
    pub echo: bool,
    /// Token ids that precede a conversation's prompt.
    pub prefix: Vec<u32>,
    /// Prompts with a common prefix share cached blocks only if their salts are equal.
    pub cache_salt: u64,
    pub client: Client,
    /// Choices per prompt.
    pub num_choices: usize,
    /// Candidates per prompt, of which the likeliest become its choices. With more candidates than choices, the response cannot be
    /// streamed.
    pub best_of: usize,
}

impl Options {
    /// Options with everything else off.
    pub fn new(sampling: SamplingParams, budget: Budget) -> Self {
        Self {
            sampling,
            chosen: None,
            budget,
            prediction: None,
            drafts: DraftLimits::default(),
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
            num_choices: 1,
            best_of: 1,
        }
    }
}
