//! The error of a grammar that cannot be compiled or followed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar is malformed, not supported or too large. The text says why.
    #[error("{0}")]
    Invalid(String),
    /// Compiling the grammar takes more than this.
    #[error("the grammar takes {0} to compile: make it smaller")]
    Expensive(String),
    /// Too many grammars are being compiled.
    #[error("too many grammars are being compiled: try again later")]
    Busy,
}
