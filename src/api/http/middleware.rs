//! The middleware around every request: ids, the host check, keys and origins, the drain, panics, error envelopes, metrics and the
//! journal.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::{ErrorInternalServerError, InternalError};
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, HttpRequest, HttpResponse, ResponseError, web};
use bytes::Bytes;
use futures_util::FutureExt;

use super::caller::Caller;
use super::connection::{ActiveRequest, ConnectionWatch};
use super::deadline::Deadline;
use super::dialect::{Dialect, Dialects};
use super::error::{ApiError, Kind};
use super::framing::Framing;
use super::journal::Journal;
use super::request_record::BodyEnd;
use super::state::AppState;
use super::tenant::Tenant;
use super::{auth, host, local_pages, metrics, paths};
use keys::InFlight;
use serving::Model;

/// Returns the model that a request asks for. Afterwards the request's log line and metrics name the model.
pub async fn requested_model(state: &web::Data<AppState>, request: &HttpRequest, id: &str) -> Result<Arc<Model>, ApiError> {
    Caller::of(request).model(state, id).await
}

/// The path prefix of operators' requests, which have no deadline: loading a model may take any time.
const ADMIN: &str = "/admin/";

/// Whether `path` is that of a health probe, which is called often.
fn is_probe(path: &str) -> bool {
    matches!(path, "/health" | "/v1/health" | "/ready" | "/ping" | "/load" | "/metrics" | "/version")
}

/// Whether a request retrieves, cancels or deletes a response. A key whose background responses take all its places can still do that.
fn only_looks(request: &ServiceRequest) -> bool {
    let (path, method) = (request.path(), request.method());
    let is_quick = match *method {
        Method::GET => !request.query_string().contains("stream"),
        Method::POST => path.ends_with("/cancel"),
        _ => *method == Method::DELETE,
    };
    is_quick && path.starts_with("/v1/responses/")
}

/// The result of admitting a request.
enum Admission {
    /// The middleware answers the request itself.
    Answer(HttpResponse),
    /// The request goes to its handler. `InFlight` counts it against the limits of its key.
    Serve(Option<InFlight>),
}

/// Refuses a request for a foreign host, one that lacks a needed key, one beyond the limits of its key, and any request but a probe's while
/// the server drains. `origin`: the origin whose page may send this request.
fn admit(request: &ServiceRequest, state: &AppState, journal: &Journal, origin: Option<&HeaderValue>) -> Result<Admission, ApiError> {
    host::check(request, &state.hosts)?;
    if let Some(response) = state.cors.preflight(request, origin) {
        return Ok(Admission::Answer(response));
    }
    if !is_probe(request.path()) && !request.path().starts_with(ADMIN) {
        journal.set_deadline(Deadline::of(request.headers(), &state.limits())?);
    }
    let tenant = auth::authenticate(request, &state.keys)?;
    journal.set_tenant(&tenant);
    request.extensions_mut().insert(tenant.clone());
    if state.drain.is_draining() && !is_probe(request.path()) {
        return Err(ApiError::new(Kind::Draining, "the server is shutting down"));
    }
    auth::begin(&tenant, only_looks(request)).map(Admission::Serve)
}

pub async fn around(mut request: ServiceRequest, next: Next<impl MessageBody + 'static>) -> Result<ServiceResponse<BoxBody>, Error> {
    let (state, dialects) = (request.app_data::<web::Data<AppState>>().cloned(), request.app_data::<web::Data<Dialects>>().cloned());
    let (Some(state), Some(dialects)) = (state, dialects) else {
        return Err(ErrorInternalServerError("the server has no state"));
    };
    // Marks the connection busy until the last byte of the response's body.
    let busy = request.request().conn_data::<Rc<ConnectionWatch>>().map(ConnectionWatch::begin);
    let framing = Framing::of(request.head(), busy.as_ref());
    // The log records the path as it was sent, so the journal is opened before the path is corrected.
    let journal = Journal::open(&request, is_probe(request.path()));
    paths::put_right(&mut request, &dialects);
    let dialect = dialects.of_request(request.path(), request.headers());
    let is_open = || !state.keys.is_required() && local_pages::are_served(&request, &dialects);
    let origin = state.cors.allowed(request.headers(), is_open);
    let admission = admit(&request, &state, &journal, origin.as_ref()).unwrap_or_else(|error| Admission::Answer(error.error_response()));
    let result = match admission {
        Admission::Answer(response) => Ok(request.into_response(response)),
        Admission::Serve(in_flight) => {
            journal.set_in_flight(in_flight);
            tokio::select! {
                // Without this, a panic would close the connection without a response.
                served = AssertUnwindSafe(next.call(request)).catch_unwind() => match served {
                    Ok(result) => result.map(ServiceResponse::map_into_boxed_body),
                    Err(_) => Err(ApiError::new(Kind::Internal, "an internal error occurred").into()),
                },
                error = journal.clone().overdue() => Err(error.into()),
            }
        }
    };
    let in_flight = journal.take_in_flight();
    match result {
        Ok(response) => {
            let (request, response) = response.into_parts();
            let (mut response, error) = write_error(response, dialect, &journal);
            journal.mark(response.headers_mut());
            dialect.mark(response.headers_mut(), &journal.id());
            auth::mark(response.headers_mut(), &Tenant::of(&request));
            state.cors.mark(response.headers_mut(), origin);
            framing.fit(&mut response);
            let route = request.match_pattern();
            count(route.as_deref(), &journal, response.status().as_u16(), error.as_ref());
            journal.answer(route, response.status().as_u16());
            Ok(ServiceResponse::new(request, response.map_body(|_, body| BoxBody::new(Answer::new(body, journal, busy, in_flight)))))
        }
        // After a panic or a deadline the request is gone, so the response is passed on as an error.
        Err(error) => {
            let (mut response, cause) = write_error(error.error_response(), dialect, &journal);
            journal.mark(response.headers_mut());
            dialect.mark(response.headers_mut(), &journal.id());
            state.cors.mark(response.headers_mut(), origin);
            framing.fit(&mut response);
            let status = response.status().as_u16();
            let cause = cause.unwrap_or_else(|| ApiError::new(Kind::Internal, "an internal error occurred"));
            count(None, &journal, status, Some(&cause));
            journal.answer(None, status);
            journal.end(BodyEnd::Whole);
            Err(InternalError::from_response(error, response).into())
        }
    }
}

/// Writes the envelope for an [`ApiError`] in the response's extensions, in the dialect's words.
fn write_error(mut response: HttpResponse, dialect: &dyn Dialect, journal: &Journal) -> (HttpResponse, Option<ApiError>) {
    let error = response.extensions_mut().remove::<ApiError>();
    let Some(error) = error else { return (response, None) };
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.status_mut() = dialect.error_status(&error);
    (response.set_body(BoxBody::new(dialect.error_body(&error, Some(&journal.id())).to_string())), Some(error))
}

/// The body of a response. Until the body has been sent, its connection is busy, its request's journal stays open, and its request counts
/// against the limits of its key.
struct Answer {
    body: BoxBody,
    journal: Rc<Journal>,
    _busy: Option<ActiveRequest>,
    _in_flight: Option<InFlight>,
}

impl Answer {
    fn new(body: BoxBody, journal: Rc<Journal>, busy: Option<ActiveRequest>, in_flight: Option<InFlight>) -> Self {
        if body.size().is_eof() {
            journal.end(BodyEnd::Whole);
        }
        Self { body, journal, _busy: busy, _in_flight: in_flight }
    }
}

impl MessageBody for Answer {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_next(cx);
        match &polled {
            Poll::Ready(None) => self.journal.end(BodyEnd::Whole),
            Poll::Ready(Some(Err(_))) => self.journal.end(BodyEnd::Cut),
            _ => {}
        }
        polled
    }
}

fn count(route: Option<&str>, journal: &Journal, status: u16, error: Option<&ApiError>) {
    metrics::count(route, journal.model().as_deref(), status);
    if let Some(error) = error {
        metrics::http().rejections.with_label_values(&[error.kind.code()]).inc();
        journal.refuse(error);
    }
}
