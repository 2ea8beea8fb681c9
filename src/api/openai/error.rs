//! OpenAI's error envelope.

use actix_web::http::StatusCode;

use super::types::error::{ErrorBody, ErrorDetail};
use http::error::{ApiError, Kind};

const REQUEST: &str = "invalid_request_error";

/// Returns the `type` of an error.
fn error_type(kind: Kind) -> &'static str {
    match kind.status() {
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_client_error() => REQUEST,
        _ => "server_error",
    }
}

pub fn body(error: &ApiError) -> ErrorBody {
    let (kind, code) = (error_type(error.kind).into(), Some(error.kind.code().into()));
    ErrorBody { error: ErrorDetail { message: error.message.clone(), kind, param: error.param.clone(), code } }
}

/// Returns the error code of a failed response: the nearest one that OpenAI defines for `/v1/responses`.
pub fn response_code(kind: Kind) -> &'static str {
    match error_type(kind) {
        REQUEST => "invalid_prompt",
        "rate_limit_error" => "rate_limit_exceeded",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_has_all_four_fields() {
        let text = serde_json::to_string(&body(&ApiError::new(Kind::Internal, "x"))).unwrap();
        assert_eq!(text, r#"{"error":{"message":"x","type":"server_error","param":null,"code":"internal_error"}}"#);
    }

    #[test]
    fn the_type_follows_from_the_status() {
        let types = [Kind::InvalidValue, Kind::QueueFull, Kind::Draining].map(|kind| (error_type(kind), response_code(kind)));
        assert_eq!(
            types,
            [("invalid_request_error", "invalid_prompt"), ("rate_limit_error", "rate_limit_exceeded"), ("server_error", "server_error")]
        );
    }
}
