//! What happens around every request: ids, the host check, the drain, panics, metrics and the access log.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::error::InternalError;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpMessage, ResponseError, web};
use futures_util::FutureExt;

use super::error::{ApiError, Kind, quoted};
use super::state::AppState;
use super::{host, metrics};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A request's model, once it is known to exist.
#[derive(Clone)]
pub struct ModelLabel(pub String);

/// What the log says about a request, taken before it is handed on.
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

    /// One line: every value is escaped or from a closed set.
    fn write(&self, status: u16, model: &str) {
        let (method, path, peer, id) = (&self.method, &self.path, &self.peer, self.id.to_str().unwrap_or(""));
        let trace = self.traceparent.as_ref().and_then(|value| value.to_str().ok()).unwrap_or("");
        let ms = self.started.elapsed().as_secs_f64() * 1e3;
        tracing::info!(target: "penstock::access", %method, %path, status, %peer, model, %id, trace, ms = format_args!("{ms:.1}"));
    }
}

fn is_plain(value: &HeaderValue, most: usize) -> bool {
    (1..=most).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// The client's own id if it is a plain short word, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let new = || HeaderValue::from_str(&uuid::Uuid::new_v4().simple().to_string()).expect("hexadecimal digits are a header value");
    headers.get(REQUEST_ID).filter(|value| is_plain(value, 128)).cloned().unwrap_or_else(new)
}

/// May the request be handled at all?
fn admit(request: &ServiceRequest) -> Result<(), ApiError> {
    let state = request.app_data::<web::Data<AppState>>().ok_or_else(|| ApiError::new(Kind::Internal, "the server has no state"))?;
    host::check(request, state.host)?;
    let is_probe = matches!(request.path(), "/health" | "/ready" | "/metrics" | "/version");
    if state.drain.is_draining() && !is_probe {
        return Err(ApiError::new(Kind::Draining, "the server is shutting down"));
    }
    Ok(())
}

pub async fn around(request: ServiceRequest, next: Next<impl MessageBody + 'static>) -> Result<ServiceResponse<BoxBody>, Error> {
    let log = Log::new(&request);
    let result = match admit(&request) {
        Err(error) => Ok(request.into_response(error.error_response())),
        // A panic would close the connection without a word.
        Ok(()) => match AssertUnwindSafe(next.call(request)).catch_unwind().await {
            Ok(result) => result.map(ServiceResponse::map_into_boxed_body),
            Err(_) => Err(ApiError::new(Kind::Internal, "an internal error occurred").into()),
        },
    };
    match result {
        Ok(mut response) => {
            log.mark(response.headers_mut());
            let route = response.request().match_pattern().unwrap_or_else(|| "unmatched".into());
            let model = response.request().extensions().get::<ModelLabel>().map_or_else(String::new, |label| label.0.clone());
            let kind = response.response().extensions().get::<Kind>().copied();
            count(&route, &model, response.status().as_u16(), kind);
            log.write(response.status().as_u16(), &model);
            Ok(response)
        }
        // The request is gone with the panic: the response has to travel as an error.
        Err(error) => {
            let mut response = error.error_response();
            log.mark(response.headers_mut());
            let status = response.status().as_u16();
            count("unmatched", "", status, Some(Kind::Internal));
            log.write(status, "");
            Err(InternalError::from_response(error, response).into())
        }
    }
}

fn count(route: &str, model: &str, status: u16, kind: Option<Kind>) {
    let metrics = metrics::http();
    metrics.requests.with_label_values(&[route, model, &status.to_string()]).inc();
    if let Some(kind) = kind {
        metrics.rejections.with_label_values(&[kind.row().2]).inc();
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::StatusCode;
    use actix_web::middleware::from_fn;
    use actix_web::{App, HttpResponse, body, test};

    use super::*;
    use crate::config::{Config, Overrides, Surroundings};
    use crate::registry::Registry;

    async fn boom() -> HttpResponse {
        panic!("a bug in a handler")
    }

    #[actix_web::test]
    async fn a_handlers_panic_is_an_error_and_not_a_closed_connection() {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let config = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap();
        let state = web::Data::new(AppState::new(&config, Registry::new(&config, &["smollm2".to_owned()]).unwrap()));
        let app = test::init_service(App::new().app_data(state).wrap(from_fn(around)).route("/x", web::get().to(boom))).await;
        let request = test::TestRequest::get().uri("/x").insert_header(("host", "localhost")).insert_header((REQUEST_ID, "mine"));
        let response = test::try_call_service(&app, request.to_request()).await.unwrap_err().error_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers().get(REQUEST_ID).unwrap(), "mine");
        let body: serde_json::Value = serde_json::from_slice(&body::to_bytes(response.into_body()).await.unwrap()).unwrap();
        assert_eq!(body["error"]["code"], "internal_error");
        assert!(!body.to_string().contains("a bug"), "what went wrong inside is for the log");
    }
}
