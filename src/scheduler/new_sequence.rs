//! A sequence as a caller hands it to the scheduler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::adapters::AdapterRequest;
use crate::drafts::DraftOptions;
use crate::items::Items;
use engine::Pooling;
use logits::{Grammar, SamplingParams};

/// A validated sequence: its prompt fits the context, and its ids are in the vocabulary.
#[derive(Clone, Debug)]
pub struct NewSequence {
    pub prompt: Items,
    pub params: Arc<SamplingParams>,
    /// The most tokens to generate. 0 is valid only with `score_prompt` or `pool`, which need the prompt alone.
    pub max_tokens: u32,
    /// Ids that end the sequence when sampled. The sampled id itself is not delivered as a token.
    pub stop_ids: Vec<u32>,
    /// Prefix-cache blocks are shared only between sequences with the same salt.
    pub cache_salt: u64,
    /// `Some(n)`: return the log-probability of each token, with the `n` likeliest alternatives, n <= [`MAX_LOGPROBS`].
    ///
    /// [`MAX_LOGPROBS`]: logits::MAX_LOGPROBS
    pub num_logprobs: Option<u8>,
    /// The grammar that the tokens must follow. Its end ids should be among `stop_ids`.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// `Some(n)`: return the log-probability of every prompt token except the first, with the `n` likeliest alternatives at each position.
    pub score_prompt: Option<u8>,
    /// Turns the prompt into a vector. Nothing is generated.
    pub pool: Option<Pooling>,
    /// Index of the first token of the second segment, for models with token types.
    pub second_segment: Option<usize>,
    /// Groups sequences with the same prompt, so that one of them computes it for all.
    pub sequence_group: Option<SequenceGroup>,
    pub drafts: DraftOptions,
    /// What changes the weights for the sequence, in the order in which it is added.
    pub adapters: Vec<AdapterRequest>,
}

impl NewSequence {
    /// A sequence that generates text, with every other option off.
    pub fn new(prompt: impl Into<Items>, params: impl Into<Arc<SamplingParams>>, max_tokens: u32) -> Self {
        Self {
            prompt: prompt.into(),
            params: params.into(),
            max_tokens,
            stop_ids: Vec::new(),
            cache_salt: 0,
            num_logprobs: None,
            score_prompt: None,
            pool: None,
            second_segment: None,
            sequence_group: None,
            drafts: DraftOptions::default(),
            adapters: Vec::new(),
            grammar: None,
        }
    }
}

/// Identifies sequences that share a prompt. The first one enqueued computes the prompt. The others share its full blocks and copy the
/// last one, which each of them writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceGroup(u64);

impl SequenceGroup {
    /// Returns an identifier that is unique in this process.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
