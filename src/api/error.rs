//! One table from what went wrong to status, type and code; the only encoder of errors.

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};

use super::types::error::{ErrorBody, ErrorDetail};

/// What went wrong, as far as a client can tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    MalformedBody,
    InvalidValue,
    Unsupported,
    ContextLength,
    ForbiddenHost,
    ModelNotFound,
    RouteNotFound,
    ResponseNotFound,
    PreviousResponse,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    MediaType,
    QueueFull,
    Internal,
    GenerationFailed,
    ModelLoading,
    ModelFailed,
    Draining,
    EngineStopped,
}

const REQUEST: &str = "invalid_request_error";
const SERVER: &str = "server_error";

impl Kind {
    /// (status, `type`, `code`)
    pub const fn row(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::MalformedBody => (StatusCode::BAD_REQUEST, REQUEST, "invalid_json"),
            Self::InvalidValue => (StatusCode::BAD_REQUEST, REQUEST, "invalid_value"),
            Self::Unsupported => (StatusCode::BAD_REQUEST, REQUEST, "unsupported_parameter"),
            Self::ContextLength => (StatusCode::BAD_REQUEST, REQUEST, "context_length_exceeded"),
            Self::ForbiddenHost => (StatusCode::FORBIDDEN, REQUEST, "host_not_allowed"),
            Self::ModelNotFound => (StatusCode::NOT_FOUND, REQUEST, "model_not_found"),
            Self::RouteNotFound => (StatusCode::NOT_FOUND, REQUEST, "unknown_url"),
            Self::ResponseNotFound => (StatusCode::NOT_FOUND, REQUEST, "response_not_found"),
            Self::PreviousResponse => (StatusCode::BAD_REQUEST, REQUEST, "previous_response_not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, REQUEST, "method_not_allowed"),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, REQUEST, "request_timeout"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, REQUEST, "request_too_large"),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, REQUEST, "unsupported_media_type"),
            Self::QueueFull => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "internal_error"),
            Self::GenerationFailed => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "generation_failed"),
            Self::ModelLoading => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_loading"),
            Self::ModelFailed => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "model_load_failed"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "shutting_down"),
            Self::EngineStopped => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "engine_stopped"),
        }
    }

    /// The nearest of the codes that a response has for why it failed.
    pub fn response_code(self) -> &'static str {
        match self.row() {
            (_, REQUEST, _) => "invalid_prompt",
            (StatusCode::TOO_MANY_REQUESTS, ..) => "rate_limit_exceeded",
            _ => "server_error",
        }
    }

    /// Seconds after which trying again may help.
    const fn retry_after(self) -> Option<&'static str> {
        match self {
            Self::QueueFull | Self::Draining => Some("1"),
            Self::ModelLoading => Some("2"),
            _ => None,
        }
    }

    /// May the rest of the request still be on its way? Then the connection cannot be used again.
    const fn closes(self) -> bool {
        matches!(self, Self::Timeout | Self::TooLarge)
    }
}

/// An error on its way to a client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
    pub param: Option<String>,
}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// A known field with a wrong value.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: Kind::InvalidValue, message: message.into(), param: Some(param.into()) }
    }

    /// A field that is understood but cannot be honoured.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self { kind: Kind::Unsupported, message: message.into(), param: Some(param.into()) }
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn body(&self) -> ErrorBody {
        let (_, kind, code) = self.kind.row();
        ErrorBody {
            error: ErrorDetail { message: self.message.clone(), kind: kind.into(), param: self.param.clone(), code: Some(code.into()) },
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.kind.row().0
    }

    fn error_response(&self) -> HttpResponse {
        let mut builder = HttpResponse::build(self.status_code());
        if let Some(seconds) = self.kind.retry_after() {
            builder.insert_header((header::RETRY_AFTER, seconds));
        }
        if self.kind.closes() {
            builder.force_close();
        }
        let mut response = builder.json(self.body());
        // The middleware counts rejections by kind.
        response.extensions_mut().insert(self.kind);
        response
    }
}

/// `text` for a message: control characters escaped, cut at 100 characters.
pub fn quoted(text: &str) -> String {
    let mut out: String = text.chars().take(100).flat_map(char::escape_debug).collect();
    if text.chars().nth(100).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelope_has_all_four_fields() {
        let text = serde_json::to_value(ApiError::new(Kind::Internal, "x").body()).unwrap();
        assert_eq!(text, serde_json::json!({"error": {"message": "x", "type": "server_error", "param": null, "code": "internal_error"}}));
    }

    #[test]
    fn overload_says_when_to_retry() {
        let response = ApiError::new(Kind::QueueFull, "full").error_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().get("retry-after").unwrap(), "1");
        assert!(ApiError::field("n", "bad").error_response().headers().get("retry-after").is_none());
    }

    #[test]
    fn quoting_bounds_and_escapes() {
        assert_eq!(quoted("a\u{1b}[0m\n"), "a\\u{1b}[0m\\n");
        assert_eq!(quoted(&"x".repeat(10_000)).chars().count(), 101);
    }
}
