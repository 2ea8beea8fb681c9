//! What a generation yields.

use chat::Piece;

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Piece(Piece),
    /// The last one.
    End(End),
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub counts: Counts,
    /// What the request named that ended the answer.
    pub stop: Option<StopCause>,
}

/// What a request named that ended its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The stop text with this index.
    Text(usize),
    /// One of the request's own stop ids.
    Token(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended the answer, or a stop text did.
    #[default]
    Stop,
    /// The answer was cut at its token limit or at the end of the context.
    Length,
    /// The model ended the answer after it had made a call.
    Calls,
}

/// Token counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: u32,
    pub generated: u32,
    /// Generated tokens that were spent on reasoning.
    pub reasoning: u32,
}

impl Counts {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt: self.prompt + other.prompt,
            cached: self.cached + other.cached,
            generated: self.generated + other.generated,
            reasoning: self.reasoning + other.reasoning,
        }
    }
}
