//! The JSON body of a request: bounded in size, in time and in the memory that it takes in any form.

use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;

use super::budget::{Budget, Held};
use super::error::{ApiError, Kind, quoted};
use super::inflate::{Encoding, too_large};
use super::journal::Journal;
use super::parse::{Meter, parse};
use super::state::{AppState, off_loop};

/// The server parses larger bodies off the event loop. In bytes.
const PARSE_INLINE: usize = 64 << 10;
/// The largest weight of a body's tree, in bodies of the largest size.
const MAX_WEIGHT: usize = 8;
/// Even a small body may have a tree of several times this size. In bytes.
const SMALL_BODY: usize = 1 << 20;
/// How much of a body is logged, if bodies are. In bytes.
const MAX_LOGGED: usize = 4 << 10;
/// How much memory the texts of a body may take at once: in its tree, in the request, in what a template is given, in the prompt.
const COPIES: usize = 4;

/// A body that has arrived. [`JsonBody::read`] parses it.
pub struct JsonBody {
    bytes: Bytes,
    encoding: Encoding,
    /// The largest size after decompression. In bytes.
    limit: usize,
    held: Held,
    /// The request's id, if its body is to be logged.
    logged_as: Option<String>,
}

impl FromRequest for JsonBody {
    type Error = ApiError;
    type Future = LocalBoxFuture<'static, Result<Self, ApiError>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        Self::receive(request, payload, check_type)
    }
}

impl JsonBody {
    /// Receives a body whose type `check` accepts.
    pub fn receive(
        request: &HttpRequest,
        payload: &mut Payload,
        check: fn(&HttpRequest) -> Result<(), ApiError>,
    ) -> LocalBoxFuture<'static, Result<Self, ApiError>> {
        let (request, payload) = (request.clone(), payload.take());
        Box::pin(async move {
            let state = request.app_data::<web::Data<AppState>>().cloned();
            let state = state.ok_or_else(|| ApiError::new(Kind::Internal, "the server has no state"))?;
            let limits = state.limits();
            let (limit, seconds) = (limits.max_body_bytes, limits.body_timeout_seconds);
            check(&request)?;
            let encoding = check_head(&request, limit)?;
            let body = tokio::time::timeout(Duration::from_secs(seconds), receive(payload, limit, &state.bodies)).await;
            let (bytes, held) = body.map_err(|_| ApiError::new(Kind::Timeout, format!("the body did not arrive within {seconds} s")))??;
            let logged_as = state.log_prompts.then(|| Journal::of(&request).id());
            Ok(Self { bytes, encoding, limit, held, logged_as })
        })
    }

    /// Parses the body and reads a request out of its tree. The tree of a large body never sees the event loop: it is built, read and
    /// freed on another thread. The request comes with the memory that is held for it.
    pub async fn read<T: Send + 'static>(
        self,
        read: impl FnOnce(&Value) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Arc<Held>), ApiError> {
        if self.encoding == Encoding::Identity && self.bytes.len() <= PARSE_INLINE {
            return self.read_here(read);
        }
        off_loop(move || self.read_here(read)).await?
    }

    fn read_here<T>(self, read: impl FnOnce(&Value) -> Result<T, ApiError>) -> Result<(T, Arc<Held>), ApiError> {
        let Self { bytes, encoding, limit, mut held, logged_as } = self;
        let size = encoding.unpacked_size(&bytes, limit)?;
        let texts = bytes.len() + COPIES * size;
        held.set(texts)?;
        let bytes = encoding.unpack(bytes, size)?;
        if let Some(id) = logged_as {
            let body = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LOGGED)]);
            tracing::info!(target: "penstock::prompts", id, bytes = bytes.len(), body = &*body);
        }
        let mut charge = |weight| held.set(texts + weight);
        let meter = Meter::new(MAX_WEIGHT * limit.max(SMALL_BODY), &mut charge);
        let value = parse(&bytes, &meter)?;
        let weight = meter.weight();
        drop(bytes);
        let request = read(&value)?;
        drop(value);
        held.shrink_to((COPIES - 1) * size + weight);
        Ok((request, Arc::new(held)))
    }
}

/// Refuses a body that does not say that it is JSON.
pub fn check_type(request: &HttpRequest) -> Result<(), ApiError> {
    let kind = request.content_type().to_ascii_lowercase();
    // A page of another origin may send some content types without a preflight request. JSON is not one of them.
    if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
        let got = if kind.is_empty() { "nothing".into() } else { format!("`{}`", quoted(&kind)) };
        return Err(ApiError::new(Kind::MediaType, format!("content-type must be `application/json`, not {got}")));
    }
    Ok(())
}

fn check_head(request: &HttpRequest, limit: usize) -> Result<Encoding, ApiError> {
    let encoding = Encoding::of(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limit as u64) {
        return Err(too_large(limit));
    }
    Ok(encoding)
}

/// Receives a body of at most `limit` bytes. What has arrived is held of `budget`.
async fn receive(mut payload: Payload, limit: usize, budget: &Arc<Budget>) -> Result<(Bytes, Held), ApiError> {
    let (mut body, mut held) = (BytesMut::new(), budget.share());
    while let Some(chunk) = payload.next().await {
        let chunk = chunk.map_err(|error| match error {
            PayloadError::Overflow => too_large(limit),
            other => ApiError::new(Kind::BrokenBody, format!("the body could not be read: {other}")),
        })?;
        let size = body.len() + chunk.len();
        if size > limit {
            return Err(too_large(limit));
        }
        if size > body.capacity() {
            // While the buffer moves, there are two of them.
            let capacity = (2 * body.capacity()).max(size).min(limit);
            held.set(body.capacity() + capacity)?;
            body.reserve(capacity - body.len());
        }
        body.extend_from_slice(&chunk);
        held.set(body.capacity())?;
    }
    Ok((body.freeze(), held))
}
