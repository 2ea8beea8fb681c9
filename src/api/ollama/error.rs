//! Ollama's error envelope: one message.

use bytes::Bytes;

use super::lines::line;
use super::types::common::ErrorBody;
use http::error::{ApiError, Kind};

pub fn body(error: &ApiError) -> ErrorBody {
    ErrorBody { error: worded(error) }
}

/// The message. Clients know an unknown model by Ollama's own words.
fn worded(error: &ApiError) -> String {
    let parts = || error.message.strip_prefix("the model `")?.split_once("` does not exist");
    match parts().filter(|_| error.kind == Kind::ModelNotFound) {
        Some((id, hint)) => format!("model '{id}' not found{hint}"),
        None => error.message.clone(),
    }
}

/// Writes the last line of a stream that fails.
pub fn error_line(error: &ApiError) -> Bytes {
    line(&body(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_model_is_named_in_ollama_s_words() {
        let of = |error: &ApiError| body(error).error;
        assert_eq!(of(&ApiError::model_not_found("x", None)), "model 'x' not found");
        assert_eq!(of(&ApiError::model_not_found("x", Some("xy"))), "model 'x' not found: did you mean xy?");
        assert_eq!(of(&ApiError::new(Kind::Internal, "the model `x` does not exist")), "the model `x` does not exist");
    }
}
