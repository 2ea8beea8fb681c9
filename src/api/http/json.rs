//! The JSON body of a request, bounded in size, in time and in the memory of all its forms.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::{FromRequest, HttpMessage, HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::error::{ApiError, Kind, quoted};
use super::field_schema::FieldSchema;
use super::ignored::Ignored;
use super::inflate::{Encoding, too_large};
use super::journal::Journal;
use super::memory_budget::{MemoryBudget, MemoryPermit};
use super::parse::{Meter, parse};
use super::state::{AppState, off_loop};
use config::UnknownFields;

/// The largest body that is parsed on the event loop [bytes].
const PARSE_INLINE: usize = 64 << 10;
/// The largest weight of a body's tree, as a multiple of the body limit.
const MAX_WEIGHT: usize = 8;
/// The least body limit that the largest weight is computed from. Even a small body may have a tree several times its size [bytes].
const SMALL_BODY: usize = 1 << 20;
/// The longest part of a body that is logged, if bodies are logged [bytes].
const MAX_LOGGED: usize = 4 << 10;
/// The number of copies of a body's texts that may exist at once: in the tree, in the request, in the template's input and in the prompt.
const COPIES: usize = 4;

/// The longest name of a field that chooses an endpoint [bytes].
const MAX_NAME: usize = 64;
/// The most fields among which those that choose an endpoint are found.
const MAX_NAMES: usize = 1024;

/// The content types that another origin's page may send without a preflight request.
const OF_PAGES: [&str; 3] = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"];
/// Headers that every browser adds to a page's request.
const OF_BROWSERS: [header::HeaderName; 2] = [header::ORIGIN, header::HeaderName::from_static("sec-fetch-site")];

/// A body that has arrived. [`JsonBody::read`] parses it.
pub struct JsonBody {
    received: Received,
    journal: Rc<Journal>,
}

/// The received bytes, and how they are read.
struct Received {
    bytes: Bytes,
    encoding: Encoding,
    /// The largest size after decompression [bytes].
    limit: usize,
    unknown: UnknownFields,
    held: MemoryPermit,
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
    /// Receives a body whose content type `check` accepts.
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
            let journal = Journal::of(&request);
            let logged_as = state.log_prompts.then(|| journal.id());
            let received = Received { bytes, encoding, limit, unknown: limits.unknown_fields, held, logged_as };
            Ok(Self { received, journal })
        })
    }

    /// Returns the first of `names` that is a field of the body with a value, without building the body's tree.
    ///
    /// # Errors
    /// The body is compressed, or is no JSON object.
    pub async fn first_of(&self, names: &'static [&'static str]) -> Result<Option<&'static str>, ApiError> {
        if self.received.encoding != Encoding::Identity {
            return Err(ApiError::new(Kind::MediaType, "a body at this path must not be compressed: its fields choose the endpoint"));
        }
        let bytes = self.received.bytes.clone();
        let find = move || fields_with_a_value(&bytes).map(|found| names.iter().copied().find(|name| found.contains(*name)));
        if self.received.bytes.len() <= PARSE_INLINE { find() } else { off_loop(find).await? }
    }

    /// Parses the body, lets `schema` remove the unknown fields from its tree, and reads a request from the tree. The tree of a large body
    /// is built, read and freed on another thread, never on the event loop. The request is returned with its memory permit.
    pub async fn read<T: Send + 'static>(
        self,
        schema: &'static FieldSchema,
        read: impl FnOnce(&Value) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, Arc<MemoryPermit>), ApiError> {
        let Self { received, journal } = self;
        let (ignored, result) = match received.encoding == Encoding::Identity && received.bytes.len() <= PARSE_INLINE {
            true => received.read(schema, read),
            false => off_loop(move || received.read(schema, read)).await?,
        };
        journal.leave_out(ignored);
        result
    }
}

impl Received {
    /// Returns the fields that were left out, and the request that `read` makes from the others.
    fn read<T>(
        self,
        schema: &FieldSchema,
        read: impl FnOnce(&Value) -> Result<T, ApiError>,
    ) -> (Ignored, Result<(T, Arc<MemoryPermit>), ApiError>) {
        let mut ignored = Ignored::default();
        let result = self.read_known(schema, &mut ignored, read);
        (ignored, result)
    }

    /// Builds the tree, removes its unknown fields, reads the request and frees the tree.
    fn read_known<T>(
        self,
        schema: &FieldSchema,
        ignored: &mut Ignored,
        read: impl FnOnce(&Value) -> Result<T, ApiError>,
    ) -> Result<(T, Arc<MemoryPermit>), ApiError> {
        let Self { bytes, encoding, limit, unknown, mut held, logged_as } = self;
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
        let mut value = parse(&bytes, &meter)?;
        let weight = meter.weight();
        drop(bytes);
        *ignored = schema.admit(&mut value, unknown)?;
        let request = read(&value)?;
        drop(value);
        held.shrink_to((COPIES - 1) * size + weight);
        Ok((request, Arc::new(held)))
    }
}

/// The names of a JSON object's fields whose values are not null. Names that are too long for a field are left out.
fn fields_with_a_value(bytes: &[u8]) -> Result<HashSet<String>, ApiError> {
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = HashSet<String>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut names = HashSet::new();
            while let Some((name, value)) = map.next_entry::<Cow<str>, Option<IgnoredAny>>()? {
                if value.is_some() && name.len() <= MAX_NAME && names.len() < MAX_NAMES {
                    names.insert(name.into_owned());
                }
            }
            Ok(names)
        }
    }
    let found = serde_json::Deserializer::from_slice(bytes).deserialize_map(Names);
    found.map_err(|error| ApiError::new(Kind::MalformedBody, format!("the body is not a JSON object: {error}")))
}

/// Whether a browser sent the request.
pub fn is_of_browser(request: &HttpRequest) -> bool {
    OF_BROWSERS.iter().any(|name| request.headers().contains_key(name))
}

/// Refuses a body that another origin's page can send without a preflight request: one with any of three content types, or one without a
/// type from a browser. API clients send JSON with other types, or with none.
pub fn check_type(request: &HttpRequest) -> Result<(), ApiError> {
    let kind = request.content_type().to_ascii_lowercase();
    if OF_PAGES.contains(&kind.as_str()) || (kind.is_empty() && is_of_browser(request)) {
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

/// Receives a body of at most `limit` bytes, and charges the received bytes to `budget`.
async fn receive(mut payload: Payload, limit: usize, budget: &Arc<MemoryBudget>) -> Result<(Bytes, MemoryPermit), ApiError> {
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
            // Both buffers exist while the bytes are copied.
            let capacity = (2 * body.capacity()).max(size).min(limit);
            held.set(body.capacity() + capacity)?;
            body.reserve(capacity - body.len());
        }
        body.extend_from_slice(&chunk);
        held.set(body.capacity())?;
    }
    Ok((body.freeze(), held))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn the_fields_of_an_object_are_found_without_its_tree() {
        let found = fields_with_a_value(br#"{"a": null, "b\u0063": [{"x": {}}], "d": false}"#).unwrap();
        assert_eq!(found, HashSet::from(["bc".to_owned(), "d".to_owned()]));
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(fields_with_a_value(deep.as_bytes()).unwrap().contains("a"));
        for wrong in ["[]", "{", "", "{\"a\": }", "5"] {
            assert_eq!(fields_with_a_value(wrong.as_bytes()).unwrap_err().kind, Kind::MalformedBody, "{wrong}");
        }
    }

    #[test]
    fn all_types_pass_but_those_that_a_page_may_send_unasked() {
        let passes = |headers: &[(&'static str, &'static str)]| {
            let request = headers.iter().fold(TestRequest::post(), |request, header| request.insert_header(*header));
            check_type(&request.to_http_request()).is_ok()
        };
        let origin = ("origin", "http://a.example");
        for kind in ["application/json", "application/octet-stream", "application/vnd.api+json; charset=utf-8", "text/json", "*/*"] {
            assert!(passes(&[("content-type", kind)]) && passes(&[("content-type", kind), origin]), "{kind}");
        }
        for kind in OF_PAGES.into_iter().chain(["Text/Plain; charset=utf-8", "multipart/form-data; boundary=x"]) {
            assert!(!passes(&[("content-type", kind)]), "{kind}");
        }
        assert!(passes(&[]) && !passes(&[origin]) && !passes(&[("sec-fetch-site", "cross-site")]));
    }
}
