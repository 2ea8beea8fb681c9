//! The outputs of a generation: pieces, and the end with its counts.

use chat::Piece;

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Piece(Piece),
    /// The last output.
    End(End),
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub counts: Counts,
    /// The stop text or stop id of the request that ended the answer, if one did.
    pub stop: Option<StopCause>,
}

/// A stop text or stop id of a request that ended its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The stop text with this index.
    Text(usize),
    /// One of the request's own stop ids.
    Token(u32),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndReason {
    /// The model or a stop text ended the answer.
    #[default]
    Stop,
    /// The answer was cut at its token limit or at the end of the context.
    Length,
    /// The model ended the answer after making a call.
    Calls,
}

/// Token counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: u32,
    pub generated: u32,
    /// Generated tokens that are reasoning.
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
