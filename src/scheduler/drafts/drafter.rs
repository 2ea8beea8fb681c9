//! The interface of a drafter, and what it sees of a sequence.

use std::fmt::Debug;

/// The tokens of a sequence that the host knows. Rows of embeddings are left out.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    pub prompt: &'a [u32],
    pub generated: &'a [u32],
}

impl History<'_> {
    pub fn len(self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// The token at `index`, which must be below [`len`](Self::len).
    pub fn at(self, index: usize) -> u32 {
        self.prompt.get(index).copied().unwrap_or_else(|| self.generated[index - self.prompt.len()])
    }

    /// Number of tokens, at most `most`, that are equal before `a` and before `b`.
    pub fn num_equal_before(self, a: usize, b: usize, most: usize) -> usize {
        (0..a.min(b).min(most)).take_while(|back| self.at(a - 1 - back) == self.at(b - 1 - back)).count()
    }
}

/// The origin of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrafterKind {
    /// The sequence's own prompt and answer.
    Ngram,
    /// The answer that the client predicted.
    Prediction,
    /// The model's draft head.
    Heads,
    /// A smaller model.
    Model,
    /// A continuation that is known beforehand, for measurements.
    Known,
}

/// Guesses the next tokens of one sequence. A wrong guess costs time and never changes the sequence's tokens.
pub trait Drafter: Debug + Send {
    fn kind(&self) -> DrafterKind;

    /// Takes a guess that the engine made, for a drafter whose guesses come from there.
    fn bring(&mut self, _guess: Vec<u32>) {}

    /// Appends to `out` at most `most` tokens that may follow `history`. `history` only grows between two calls.
    ///
    /// Returns the support of the guess: the number of tokens at the end of `history` that occur in the same order before the guessed
    /// ones. Guesses with more support are accepted more often (`acceptance.rs`).
    fn propose(&mut self, history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize;
}
