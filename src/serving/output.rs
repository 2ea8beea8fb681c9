//! The outputs of a generation: pieces, and the end.

use chat::Piece;
use scheduler::DraftCounts;

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// At least one piece.
    Pieces(Vec<Piece>),
    /// The last output.
    End(End),
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
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

/// Token counts of a generation or a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt: u32,
    /// Tokens of the prompt that were found in the prefix cache.
    pub cached: u32,
    pub generated: u32,
    /// Generated tokens that are reasoning.
    pub reasoning: u32,
    pub drafts: DraftCounts,
}

impl Counts {
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            prompt: self.prompt.saturating_add(other.prompt),
            cached: self.cached.saturating_add(other.cached),
            generated: self.generated.saturating_add(other.generated),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            drafts: self.drafts.plus(other.drafts),
        }
    }
}
