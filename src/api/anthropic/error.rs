//! Anthropic's error envelope, and its table of statuses and types.

use actix_web::http::StatusCode;
use bytes::Bytes;

use super::convert::options::THREAD;
use super::types::error::{MessagesError, MessagesErrorBody, MessagesErrorDetails};
use http::error::{ApiError, Kind};
use http::sse;

/// The prefix of the shared message about a context that is too short.
const OVERFLOW: &str = "context_length_exceeded: ";

/// Returns the status and type of an error. Conditions that pass by themselves (a full queue, a load, a drain) count as overload.
fn row(kind: Kind) -> (StatusCode, &'static str) {
    let overloaded = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    match kind {
        Kind::RateLimit => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error"),
        Kind::QueueFull | Kind::QueueTimeout | Kind::Overloaded | Kind::Draining | Kind::ModelLoading | Kind::ModelNoRoom => {
            (overloaded, "overloaded_error")
        }
        Kind::Deadline => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
        other => match other.status() {
            status @ StatusCode::UNAUTHORIZED => (status, "authentication_error"),
            status @ StatusCode::FORBIDDEN => (status, "permission_error"),
            status @ StatusCode::NOT_FOUND => (status, "not_found_error"),
            status @ StatusCode::PAYLOAD_TOO_LARGE => (status, "request_too_large"),
            status @ StatusCode::TOO_MANY_REQUESTS => (status, "rate_limit_error"),
            status if status.is_client_error() => (status, "invalid_request_error"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "api_error"),
        },
    }
}

pub fn status(error: &ApiError) -> StatusCode {
    row(error.kind).0
}

/// Words the error for a prompt that is too long. Agents recognise this wording and read from it by how much they must shorten the
/// conversation.
fn too_long(error: &ApiError) -> String {
    let message = error.message.strip_prefix(OVERFLOW).unwrap_or(&error.message);
    match error.overflow {
        Some((asked, most)) => format!("prompt is too long: {asked} tokens > {most} maximum: {message}"),
        None => format!("prompt is too long: {message}"),
    }
}

pub fn body(error: &ApiError, id: Option<&str>) -> MessagesErrorBody {
    let message = match error.kind {
        Kind::ContextLength => too_long(error),
        _ => error.message.clone(),
    };
    // On this error, clients send the whole conversation.
    let is_thread = error.kind == Kind::Unsupported && error.param.as_deref() == Some(THREAD);
    let details =
        is_thread.then(|| MessagesErrorDetails { error_code: "thread_unsupported_request".into(), unsupported: vec![THREAD.into()] });
    let error = MessagesError { kind: row(error.kind).1.into(), message, details };
    MessagesErrorBody { kind: "error".into(), error, request_id: id.map(str::to_owned) }
}

/// Writes the last event of a stream that fails.
pub fn event(error: &ApiError, id: Option<&str>) -> Bytes {
    sse::named("error", &body(error, id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_is_anthropics() {
        let of = |kind| (row(kind).0.as_u16(), row(kind).1);
        assert_eq!(of(Kind::InvalidValue), (400, "invalid_request_error"));
        assert_eq!(of(Kind::Unauthorized), (401, "authentication_error"));
        assert_eq!(of(Kind::ModelForbidden), (403, "permission_error"));
        assert_eq!([of(Kind::ModelNotFound), of(Kind::RouteNotFound)], [(404, "not_found_error"); 2]);
        assert_eq!(of(Kind::TooLarge), (413, "request_too_large"));
        assert_eq!(of(Kind::RateLimit), (429, "rate_limit_error"));
        assert_eq!([of(Kind::Internal), of(Kind::EngineStopped)], [(500, "api_error"); 2]);
        assert_eq!(of(Kind::Deadline), (504, "timeout_error"));
        assert_eq!([of(Kind::QueueFull), of(Kind::Draining), of(Kind::ModelLoading)], [(529, "overloaded_error"); 3]);
    }

    #[test]
    fn the_envelope_names_the_request() {
        let error = ApiError::new(Kind::ContextLength, "context_length_exceeded: shorten it");
        let error = ApiError { overflow: Some((5, 4)), ..error };
        let inner = r#"{"type":"invalid_request_error","message":"prompt is too long: 5 tokens > 4 maximum: shorten it"}"#;
        let text = format!(r#"{{"type":"error","error":{inner},"request_id":"r1"}}"#);
        assert_eq!(json!(body(&error, Some("r1"))).to_string(), text);
        assert_eq!(event(&error, Some("r1")), format!("event: error\ndata: {text}\n\n"));
    }
}
