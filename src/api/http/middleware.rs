//! The middleware around every request: ids, the host check, keys and origins, the drain, panics, error envelopes, metrics and the
//! access log.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorInternalServerError, InternalError};
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse, ResponseError, web};
use bytes::Bytes;
use futures_util::FutureExt;

use super::connection::{Busy, Watch};
use super::dialect::{Dialect, Dialects};
use super::error::{ApiError, Kind, quoted};
use super::state::AppState;
use super::tenant::Tenant;
use super::{auth, host, metrics};
use keys::InFlight;
use serving::Model;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The model of a request, set once the model is known to exist.
#[derive(Clone)]
struct ModelLabel(String);

/// The model that a request asks for. From then on, the request's line in the log and its metrics name the model.
pub async fn requested_model(state: &AppState, request: &HttpRequest, id: &str) -> Result<Arc<Model>, ApiError> {
    let tenant = Tenant::of(request);
    tenant.check_model(&state.registry, id)?;
    let model = state.model(id, tenant.client()).await?;
    request.extensions_mut().insert(ModelLabel(model.id.clone()));
    Ok(model)
}

/// The log's facts about a request, taken before the handler consumes it.
struct Log {
    started: Instant,
    method: String,
    path: String,
    peer: String,
    id: HeaderValue,
    traceparent: Option<HeaderValue>,
}

impl Log {
    fn new(request: &ServiceRequest) -> Self {
        Self {
            started: Instant::now(),
            method: quoted(request.method().as_str()),
            path: quoted(request.path()),
            peer: request.peer_addr().map(|address| address.to_string()).unwrap_or_default(),
            id: request_id(request.headers()),
            traceparent: request.headers().get(TRACEPARENT).filter(|value| is_plain(value, 128)).cloned(),
        }
    }

    fn mark(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, self.id.clone());
        if let Some(traceparent) = &self.traceparent {
            headers.insert(TRACEPARENT, traceparent.clone());
        }
    }

    /// Writes one line. Every value is escaped or comes from a closed set.
    fn write(&self, status: u16, model: &str) {
        let (method, path, peer, id) = (&self.method, &self.path, &self.peer, self.id.to_str().unwrap_or(""));
        let trace = self.traceparent.as_ref().and_then(|value| value.to_str().ok()).unwrap_or("");
        let ms = self.started.elapsed().as_secs_f64() * 1e3;
        tracing::info!(target: "penstock::access", %method, %path, status, %peer, model, %id, trace, ms = format_args!("{ms:.1}"));
    }
}

fn is_plain(value: &HeaderValue, max_len: usize) -> bool {
    (1..=max_len).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// The client's request id if it is a short word of plain characters, otherwise a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let new = || HeaderValue::from_str(&uuid::Uuid::new_v4().simple().to_string()).expect("hexadecimal digits are a header value");
    headers.get(REQUEST_ID).filter(|value| is_plain(value, 128)).cloned().unwrap_or_else(new)
}

/// What becomes of a request that is not refused.
enum Admission {
    /// The answer is known.
    Answer(HttpResponse),
    /// The request goes to its handler. `InFlight` counts it against the limits of its key.
    Serve(Option<InFlight>),
}

/// Refuses a request for a foreign host, one without a key where one is needed, one beyond the limits of its key, and any request but a
/// probe's once the server drains.
fn admit(request: &ServiceRequest, state: &AppState) -> Result<Admission, ApiError> {
    host::check(request, &state.hosts)?;
    if let Some(response) = state.cors.preflight(request) {
        return Ok(Admission::Answer(response));
    }
    let tenant = auth::authenticate(request, &state.keys)?;
    request.extensions_mut().insert(tenant.clone());
    let is_probe = matches!(request.path(), "/health" | "/ready" | "/metrics" | "/version");
    if state.drain.is_draining() && !is_probe {
        return Err(ApiError::new(Kind::Draining, "the server is shutting down"));
    }
    auth::begin(&tenant).map(Admission::Serve)
}

pub async fn around(request: ServiceRequest, next: Next<impl MessageBody + 'static>) -> Result<ServiceResponse<BoxBody>, Error> {
    let (state, dialects) = (request.app_data::<web::Data<AppState>>().cloned(), request.app_data::<web::Data<Dialects>>().cloned());
    let (Some(state), Some(dialects)) = (state, dialects) else {
        return Err(ErrorInternalServerError("the server has no state"));
    };
    // It ends with the last byte of the answer's body.
    let busy = request.request().conn_data::<Rc<Watch>>().map(Watch::begin);
    let log = Log::new(&request);
    let dialect = dialects.of(request.path());
    let origin = state.cors.allowed(request.headers());
    let admission = admit(&request, &state).unwrap_or_else(|error| Admission::Answer(error.error_response()));
    let mut in_flight = None;
    let result = match admission {
        Admission::Answer(response) => Ok(request.into_response(response)),
        // Without this, a panic would close the connection without an answer.
        Admission::Serve(counted) => match AssertUnwindSafe(next.call(request)).catch_unwind().await {
            Ok(result) => {
                in_flight = counted;
                result.map(ServiceResponse::map_into_boxed_body)
            }
            Err(_) => Err(ApiError::new(Kind::Internal, "an internal error occurred").into()),
        },
    };
    match result {
        Ok(response) => {
            let (request, response) = response.into_parts();
            let (mut response, kind) = write_error(response, dialect);
            log.mark(response.headers_mut());
            auth::mark(response.headers_mut(), &Tenant::of(&request));
            state.cors.mark(response.headers_mut(), origin);
            let route = request.match_pattern().unwrap_or_else(|| "unmatched".into());
            let model = request.extensions().get::<ModelLabel>().map_or_else(String::new, |label| label.0.clone());
            count(&route, &model, response.status().as_u16(), kind);
            log.write(response.status().as_u16(), &model);
            Ok(ServiceResponse::new(
                request,
                response.map_body(|_, body| BoxBody::new(Answer { body, _busy: busy, _in_flight: in_flight })),
            ))
        }
        // The panic has taken the request with it, so the response travels as an error.
        Err(error) => {
            let (mut response, kind) = write_error(error.error_response(), dialect);
            log.mark(response.headers_mut());
            state.cors.mark(response.headers_mut(), origin);
            let status = response.status().as_u16();
            count("unmatched", "", status, kind.or(Some(Kind::Internal)));
            log.write(status, "");
            Err(InternalError::from_response(error, response).into())
        }
    }
}

/// Writes the envelope of an [`ApiError`] that the response carries, in the dialect's words.
fn write_error(mut response: HttpResponse, dialect: &dyn Dialect) -> (HttpResponse, Option<Kind>) {
    let error = response.extensions_mut().remove::<ApiError>();
    let Some(error) = error else { return (response, None) };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    (response.set_body(BoxBody::new(dialect.error_body(&error))), Some(error.kind))
}

/// An answer's body. While it is sent, its connection is busy and its request counts against the limits of its key.
struct Answer {
    body: BoxBody,
    _busy: Option<Busy>,
    _in_flight: Option<InFlight>,
}

impl MessageBody for Answer {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.body).poll_next(cx)
    }
}

fn count(route: &str, model: &str, status: u16, kind: Option<Kind>) {
    let metrics = metrics::http();
    metrics.requests.with_label_values(&[route, model, &status.to_string()]).inc();
    if let Some(kind) = kind {
        metrics.rejections.with_label_values(&[kind.code()]).inc();
    }
}
