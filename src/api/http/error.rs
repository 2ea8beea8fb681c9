//! Errors that clients see. One table maps each kind to its status and code, and the dialect that owns the request's path writes the
//! envelope.

use std::time::Duration;

use actix_web::http::{StatusCode, header};
use actix_web::{HttpResponse, ResponseError};

use registry::RegistryError;
use serving::SubmitError;

const RETRY_AFTER_MS: header::HeaderName = header::HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: header::HeaderName = header::HeaderName::from_static("x-should-retry");

/// The kind of an error. Each kind has its own status and code, so that a client can tell them apart. Exceeded key limits and full queues
/// share the code that clients know for "wait and try again".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The body is complete but not JSON.
    MalformedBody,
    /// The body cannot be received or decompressed.
    BrokenBody,
    /// The body is not a multipart form, or a malformed one.
    MalformedForm,
    MalformedHead,
    HeadTooLarge,
    InvalidValue,
    Unsupported,
    UnknownField,
    ContextLength,
    Unauthorized,
    ForbiddenHost,
    ModelForbidden,
    AdminRequired,
    ModelNotFound,
    RouteNotFound,
    ResponseNotFound,
    PreviousResponse,
    MethodNotAllowed,
    Timeout,
    TooLarge,
    MediaType,
    RateLimit,
    QueueFull,
    QueueTimeout,
    Overloaded,
    Internal,
    GenerationFailed,
    ModelLoading,
    ModelFailed,
    ModelNoRoom,
    ModelInUse,
    PullFailed,
    CreateFailed,
    AdapterFailed,
    Draining,
    EngineStopped,
    Deadline,
    NotImplemented,
    NotFound,
    NoSpace,
    StorageFull,
    StorageGone,
}

impl Kind {
    /// The table: status and code.
    const fn row(self) -> (StatusCode, &'static str) {
        match self {
            Self::MalformedBody => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::BrokenBody => (StatusCode::BAD_REQUEST, "invalid_body"),
            Self::MalformedForm => (StatusCode::BAD_REQUEST, "invalid_form"),
            Self::MalformedHead => (StatusCode::BAD_REQUEST, "invalid_http"),
            Self::HeadTooLarge => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "request_head_too_large"),
            Self::InvalidValue => (StatusCode::BAD_REQUEST, "invalid_value"),
            Self::Unsupported => (StatusCode::BAD_REQUEST, "unsupported_parameter"),
            Self::UnknownField => (StatusCode::BAD_REQUEST, "unknown_parameter"),
            Self::ContextLength => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::ForbiddenHost => (StatusCode::FORBIDDEN, "host_not_allowed"),
            Self::ModelForbidden => (StatusCode::FORBIDDEN, "model_not_allowed"),
            Self::AdminRequired => (StatusCode::FORBIDDEN, "admin_required"),
            Self::ModelNotFound => (StatusCode::NOT_FOUND, "model_not_found"),
            Self::RouteNotFound => (StatusCode::NOT_FOUND, "unknown_url"),
            Self::ResponseNotFound => (StatusCode::NOT_FOUND, "response_not_found"),
            Self::PreviousResponse => (StatusCode::BAD_REQUEST, "previous_response_not_found"),
            Self::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Timeout => (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "request_too_large"),
            Self::MediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Self::RateLimit | Self::QueueFull => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
            Self::QueueTimeout => (StatusCode::TOO_MANY_REQUESTS, "queue_timeout"),
            Self::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "server_overloaded"),
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
            Self::GenerationFailed => (StatusCode::INTERNAL_SERVER_ERROR, "generation_failed"),
            Self::ModelLoading => (StatusCode::SERVICE_UNAVAILABLE, "model_loading"),
            Self::ModelFailed => (StatusCode::SERVICE_UNAVAILABLE, "model_load_failed"),
            Self::ModelNoRoom => (StatusCode::SERVICE_UNAVAILABLE, "model_no_room"),
            Self::ModelInUse => (StatusCode::CONFLICT, "model_in_use"),
            Self::PullFailed => (StatusCode::BAD_REQUEST, "pull_failed"),
            Self::CreateFailed => (StatusCode::BAD_REQUEST, "create_failed"),
            Self::AdapterFailed => (StatusCode::BAD_REQUEST, "adapter_failed"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            Self::EngineStopped => (StatusCode::SERVICE_UNAVAILABLE, "engine_stopped"),
            Self::Deadline => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
            Self::NotImplemented => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Self::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage"),
            Self::StorageFull => (StatusCode::BAD_REQUEST, "storage_limit_exceeded"),
            Self::StorageGone => (StatusCode::SERVICE_UNAVAILABLE, "storage_unavailable"),
        }
    }

    pub const fn status(self) -> StatusCode {
        self.row().0
    }

    /// A stable name, for clients and for metrics.
    pub const fn code(self) -> &'static str {
        self.row().1
    }

    /// Whether the server is at fault. Loading a model, shutting down, keeping a deadline or lacking an endpoint are no faults.
    pub fn is_fault(self) -> bool {
        let waits = matches!(self, Self::ModelLoading | Self::ModelNoRoom | Self::Draining | Self::Deadline | Self::NotImplemented);
        self.status().is_server_error() && !waits
    }

    /// The time after which a retry may succeed.
    const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::RateLimit | Self::QueueFull | Self::QueueTimeout | Self::Overloaded | Self::Draining => Some(Duration::from_secs(1)),
            Self::ModelLoading | Self::ModelNoRoom => Some(Duration::from_secs(2)),
            _ => None,
        }
    }

    /// Whether the rest of the request may still be arriving, so that the connection cannot be reused.
    const fn closes_connection(self) -> bool {
        matches!(self, Self::Timeout | Self::TooLarge | Self::Overloaded | Self::Deadline)
    }
}

/// An error on its way to a client.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub kind: Kind,
    pub message: String,
    pub param: Option<String>,
    /// Overrides the kind's own retry time.
    pub retry_after: Option<Duration>,
    /// The number of tokens that a prompt has and the number that it may have, if it is too long.
    pub overflow: Option<(usize, usize)>,
}

impl ApiError {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None, overflow: None }
    }

    /// Creates the error for a known field with a wrong value.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Kind::InvalidValue, message).with_param(param)
    }

    /// Creates the error for a known field that the server cannot honour.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message).with_param(param)
    }

    /// Creates the error for an unknown model. `near` is a served model with a similar name.
    pub fn model_not_found(id: &str, near: Option<&str>) -> Self {
        let hint = near.map_or(String::new(), |near| format!(": did you mean {near}?"));
        Self::new(Kind::ModelNotFound, format!("the model `{}` does not exist{hint}", quoted(id))).with_param("model")
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let kind = match error {
            SubmitError::QueueFull | SubmitError::TokensFull => Kind::QueueFull,
            SubmitError::Stopped => Kind::EngineStopped,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<RegistryError> for ApiError {
    fn from(error: RegistryError) -> Self {
        match &error {
            RegistryError::NotFound { id, near } => Self::model_not_found(id, near.as_deref()),
            RegistryError::Loading(_) => Self::new(Kind::ModelLoading, error.to_string()),
            RegistryError::NoRoom(_) => Self::new(Kind::ModelNoRoom, error.to_string()),
            RegistryError::NotLoaded(_) => Self::new(Kind::ModelInUse, error.to_string()).with_param("model"),
            RegistryError::QueueFull(_) => Self::new(Kind::QueueFull, error.to_string()),
            RegistryError::InUse { .. } => {
                Self::new(Kind::ModelInUse, format!("{error}: wait for them, or send `\"force\": true` to end them")).with_param("model")
            }
            RegistryError::Pinned(_) | RegistryError::NotDeleted { .. } => {
                Self::new(Kind::ModelInUse, error.to_string()).with_param("model")
            }
            RegistryError::NotCreated { .. } => Self::new(Kind::CreateFailed, error.to_string()).with_param("model"),
            RegistryError::PullFailed { .. } => Self::new(Kind::PullFailed, error.to_string()).with_param("model"),
            RegistryError::AdapterRefused(_) => Self::new(Kind::InvalidValue, error.to_string()).with_param("model"),
            RegistryError::AdapterFailed(_) => Self::new(Kind::AdapterFailed, error.to_string()).with_param("model"),
            RegistryError::AdapterNoRoom(_) => Self::new(Kind::ModelNoRoom, error.to_string()),
            // The cause may name files of the server, so it is in the log only.
            RegistryError::LoadFailed { id, .. } => {
                Self::new(Kind::ModelFailed, format!("the model `{}` could not be loaded: the server's log has the cause", quoted(id)))
            }
        }
    }
}

impl ResponseError for ApiError {
    fn status_code(&self) -> StatusCode {
        self.kind.status()
    }

    /// Makes a response without a body. The middleware takes the error out of the response's extensions and lets the dialect write the
    /// body.
    fn error_response(&self) -> HttpResponse {
        let mut builder = HttpResponse::build(self.status_code());
        if let Some(wait) = self.retry_after.or(self.kind.retry_after()) {
            // SDKs prefer the time in milliseconds. The standard header has whole seconds.
            builder.insert_header((header::RETRY_AFTER, wait.as_nanos().div_ceil(1_000_000_000).max(1).to_string()));
            builder.insert_header((RETRY_AFTER_MS, wait.as_nanos().div_ceil(1_000_000).max(1).to_string()));
        }
        if self.kind == Kind::NotImplemented {
            // OpenAI's SDKs send a request again after any status from 500 up, unless they are told not to.
            builder.insert_header((SHOULD_RETRY, "false"));
        }
        if self.kind == Kind::Unauthorized {
            builder.insert_header((header::WWW_AUTHENTICATE, "Bearer"));
        }
        if self.kind.closes_connection() {
            builder.force_close();
        }
        let mut response = builder.finish();
        response.extensions_mut().insert(self.clone());
        response
    }
}

/// Prepares `text` for a message: escapes control characters and cuts the text after 100 characters.
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
    fn an_overload_error_says_when_to_retry() {
        let response = ApiError::new(Kind::QueueFull, "full").error_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers().get("retry-after").unwrap(), "1");
        let late =
            ApiError { retry_after: Some(Duration::from_micros(1_500_200)), ..ApiError::new(Kind::RateLimit, "wait") }.error_response();
        let header = |name: &str| late.headers().get(name).unwrap().to_str().unwrap();
        assert_eq!([header("retry-after"), header("retry-after-ms")], ["2", "1501"]);
        assert!(ApiError::field("n", "bad").error_response().headers().get("retry-after").is_none());
    }

    #[test]
    fn an_error_of_a_load_names_no_file_of_the_server() {
        let error = ApiError::from(RegistryError::LoadFailed { id: "m".into(), cause: "/secret/m.gguf: broken".into() });
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Kind::ModelFailed, "the model `m` could not be loaded: the server's log has the cause")
        );
    }

    #[test]
    fn quoted_text_is_bounded_and_escaped() {
        assert_eq!(quoted("a\u{1b}[0m\n"), "a\\u{1b}[0m\\n");
        assert_eq!(quoted(&"x".repeat(10_000)).chars().count(), 101);
    }
}
