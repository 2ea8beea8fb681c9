//! The error of a template that cannot be translated.

/// Why a template of Go's cannot be translated, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct GoTemplateError {
    /// The line of the template, from 1.
    pub line: usize,
    pub what: String,
}

impl GoTemplateError {
    pub fn new(line: usize, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}
