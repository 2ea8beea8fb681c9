//! Cross-origin requests (CORS). A browser lets a page use the server only if the server names the page's origin.
//!
//! The server never allows credentials that a browser adds by itself, such as cookies, because it uses none. A page sends its key in a
//! header.

use actix_web::HttpResponse;
use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};

const METHODS: &str = "GET, HEAD, POST, DELETE";
/// How long a browser may cache the response to a preflight request [s]. Chromium caches none longer.
const MAX_AGE: &str = "7200";
/// The response headers that pages may read in addition to those that every page may read.
const EXPOSED: &str = "x-request-id, request-id, traceparent, retry-after, retry-after-ms, penstock-ignored-fields, \
                       x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
                       x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
/// The longest list of headers that a preflight request may name [bytes].
const MAX_REQUESTED: usize = 2048;

pub struct Cors {
    origins: Vec<String>,
}

impl Cors {
    pub fn new(origins: &[String]) -> Self {
        Self { origins: origins.to_vec() }
    }

    /// Returns the origin that a request names, if its pages may use the server.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        let is_listed = |listed: &String| listed == "*" || listed.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is_listed).then(|| origin.clone())
    }

    /// Answers a preflight request of an allowed origin. No key is needed, because browsers send none.
    pub fn preflight(&self, request: &ServiceRequest) -> Option<HttpResponse> {
        let headers = request.headers();
        let asks = request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        self.allowed(headers).filter(|_| asks)?;
        let mut response = HttpResponse::NoContent();
        response.insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, METHODS)).insert_header((header::ACCESS_CONTROL_MAX_AGE, MAX_AGE));
        // Clients name their own headers here, which the server ignores.
        if let Some(requested) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).filter(|value| is_list_of_names(value)) {
            response.insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone()));
        }
        Some(response.finish())
    }

    /// Adds the CORS headers to a response. `origin` is the result of [`Cors::allowed`].
    pub fn mark(&self, headers: &mut HeaderMap, origin: Option<HeaderValue>) {
        if self.origins.is_empty() {
            return;
        }
        // A cache must not give one origin's answer to another.
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(origin) = origin {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        }
    }
}

/// Whether a value is a list of header names.
fn is_list_of_names(value: &HeaderValue) -> bool {
    let is_name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    value.len() <= MAX_REQUESTED && value.to_str().is_ok_and(|text| text.split(',').all(is_name))
}
