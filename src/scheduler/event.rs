//! The events that a sequence sends to its client.

use logits::Logprobs;

/// Why a sequence ended successfully.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was sampled, or the grammar allows nothing more (`stop`).
    Stop,
    /// `max_tokens` or the end of the KV cache was reached (`length`).
    Length,
}

#[derive(Clone, Debug)]
pub enum Event {
    Token {
        id: u32,
        /// Present if the sequence asked for log-probabilities. Boxed, since few sequences ask.
        logprobs: Option<Box<Logprobs>>,
    },
    /// Scores of the prompt's next tokens, if the sequence asked for them. They arrive in order, start at the second prompt token, and
    /// precede the first generated token.
    Scored(Vec<Logprobs>),
    /// The prompt's vector.
    Pooled(Vec<f32>),
    /// The last event of a sequence that ended successfully.
    Finished {
        reason: FinishReason,
        /// The stop id that was sampled, if one was.
        stopped_by: Option<u32>,
        prompt_tokens: u32,
        /// Prompt tokens that the prefix cache held.
        cached_tokens: u32,
        /// Tokens delivered, without the stop id.
        generated_tokens: u32,
    },
    /// The last event of a sequence whose logits were not finite, or whose engine failed.
    Failed(String),
    /// The last event of a sequence whose own grammar reached a dead end or exceeded its limits.
    Unfollowable(String),
}

impl Event {
    /// Whether no event follows this one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_) | Self::Unfollowable(_))
    }
}
