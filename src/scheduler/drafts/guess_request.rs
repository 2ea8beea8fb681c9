//! [`GuessRequest`]: what a draft model reads of a sequence.

use std::sync::Arc;

use crate::items::Items;
use crate::lru::Owner;
use logits::SamplingParams;

/// A sequence whose next tokens the draft model guesses.
#[derive(Clone, Copy, Debug)]
pub struct GuessRequest<'a> {
    pub id: u64,
    pub prompt: &'a Items,
    pub generated: &'a [u32],
    pub params: &'a Arc<SamplingParams>,
    pub stop_ids: &'a [u32],
    pub salt: u64,
    pub owner: Owner,
    /// The number of tokens to guess.
    pub most: usize,
}

impl GuessRequest<'_> {
    /// Number of tokens so far, without rows of embeddings.
    pub fn len(&self) -> usize {
        self.prompt.tokens().len() + self.generated.len()
    }

    /// The token at `index`, which must be below [`len`](Self::len).
    pub fn token(&self, index: usize) -> u32 {
        let prompt = self.prompt.tokens();
        prompt.get(index).copied().unwrap_or_else(|| self.generated[index - prompt.len()])
    }
}
