//! Defines the interface between grammars and the scheduler: which token ids may come next in a sequence.

use std::fmt::Debug;

/// A compiled grammar over token ids. Many sequences may share one.
pub trait Grammar: Debug + Send + Sync {
    /// Returns the position at the beginning of a text.
    fn start(&self) -> Box<dyn Constraint>;
}

/// A sequence's position in its grammar.
pub trait Constraint: Send {
    /// Advances the position by a sampled id.
    ///
    /// # Errors
    /// If the grammar forbids the id here, or if following the grammar exceeds its time budget.
    fn accept(&mut self, id: u32) -> Result<(), String>;

    /// Returns the ids that may come next.
    ///
    /// # Errors
    /// If no id may come next although the text is incomplete, or if following the grammar exceeds its time budget.
    fn allowed(&mut self) -> Result<Allowed, String>;

    /// Returns a copy, to follow tokens that may be taken back. None if there is no room for one.
    fn fork(&self) -> Option<Box<dyn Constraint>>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every id.
    All,
    /// One bit per id, in [`mask_words`](crate::mask_words) words. The model's end ids are allowed if the text may end here.
    Mask(Vec<u32>),
    /// No id: the text is complete.
    End,
}
