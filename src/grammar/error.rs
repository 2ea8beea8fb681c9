//! [`GrammarError`]: why a grammar cannot be compiled or followed.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar is malformed, not supported or too large. The text says why.
    #[error("{0}")]
    Invalid(String),
    /// Compiling the grammar takes more than the text says.
    #[error("the grammar takes {0} to compile: make it smaller")]
    Expensive(String),
    /// Too many grammars are being compiled, or too many texts follow large ones.
    #[error("too many grammars are compiled or followed at once: try again later")]
    Busy,
    /// An error in one of a source's named grammars.
    #[error("{error}")]
    Part { name: String, error: Box<GrammarError> },
}

impl GrammarError {
    /// Attributes the error to the named grammar `name`, unless the error is [`GrammarError::Busy`], which no grammar causes.
    pub(crate) fn of_part(self, name: &str) -> Self {
        match self {
            Self::Part { .. } | Self::Busy => self,
            error => Self::Part { name: name.to_owned(), error: Box::new(error) },
        }
    }

    /// The name of the grammar at fault, if known, and the error itself.
    pub fn split(self) -> (Option<String>, Self) {
        match self {
            Self::Part { name, error } => (Some(name), *error),
            error => (None, error),
        }
    }
}
