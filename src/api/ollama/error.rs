//! Ollama's error envelope: one message.

use bytes::Bytes;

use super::lines::line;
use super::types::common::ErrorBody;
use http::error::ApiError;

pub fn body(error: &ApiError) -> ErrorBody {
    ErrorBody { error: error.message.clone() }
}

/// Writes the last line of a stream that fails.
pub fn error_line(error: &ApiError) -> Bytes {
    line(&body(error))
}
