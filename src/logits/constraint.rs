//! What a grammar allows, id by id: the seam between those who know grammars and those who run sequences.

use std::fmt::Debug;

/// A grammar over token ids, ready to be followed. Sequences share it.
pub trait Grammar: Debug + Send + Sync {
    /// At the beginning of a text.
    fn start(&self) -> Box<dyn Constraint>;
}

/// A sequence's place in its grammar.
pub trait Constraint: Send {
    /// Moves on by a sampled id.
    ///
    /// # Errors
    /// The id does not fit, or the grammar takes more to follow than is allowed.
    fn accept(&mut self, id: u32) -> Result<(), String>;

    /// What may follow.
    ///
    /// # Errors
    /// Nothing may, though the text is not complete, or it takes more to tell than is allowed.
    fn allowed(&mut self) -> Result<Allowed, String>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Whatever the model likes.
    All,
    /// A bit an id, [`mask_words`](super::mask_words) words. Where the text may end, the model's end ids are among them.
    Mask(Vec<u32>),
    /// Nothing: the text is complete.
    End,
}
