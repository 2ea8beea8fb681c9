//! Grammars over a model's vocabulary: what a text must follow, compiled to masks over token ids.
//!
//! A client writes grammars and schemas, so they are not trusted: sizes are capped, they are compiled on a thread of their own with a
//! large stack and within a time, and following one takes bounded work a token.

mod compile;
mod locate;
mod matcher;
mod meter;
mod source;
#[cfg(test)]
pub mod tests;
mod vocab;

pub use compile::Compiler;
pub use source::{Source, lark_string};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It cannot be followed, and why.
    #[error("{0}")]
    Invalid(String),
    /// Too many are being compiled.
    #[error("too many grammars are being compiled: try again later")]
    Busy,
}
