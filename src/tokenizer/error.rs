//! [`TokenizerError`]: why a vocabulary is malformed or not supported.

#[derive(Debug, thiserror::Error)]
#[error("tokenizer: {0}")]
pub struct TokenizerError(pub String);

pub(crate) fn fault<T>(text: String) -> Result<T, TokenizerError> {
    Err(TokenizerError(text))
}
