//! Cross-origin requests (CORS). A browser lets a page use the server only if the server names the page's origin.
//!
//! The server never allows credentials that a browser adds by itself, such as cookies, because it uses none. A page sends its key in a
//! header.
//!
//! Pages of the origins in `server.cors_origins` may use everything. On a loopback address and without keys, pages and apps of this machine
//! may also ask models and list them, as with other servers that people run at home. They may not change what the server keeps: its models,
//! its files. The origin `null` is not one of this machine's, since every site's sandboxed frames have it.

use std::net::IpAddr;

use actix_web::HttpResponse;
use actix_web::dev::ServiceRequest;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::error::quoted;
use super::host::name_of;

const METHODS: &str = "GET, HEAD, POST, DELETE";
/// The methods of pages of this machine.
const LOCAL_METHODS: &str = "GET, HEAD, POST";
/// The hosts of this machine's pages. Apps built with Tauri have the last one on Windows.
const LOCAL_HOSTS: [&str; 4] = ["localhost", "127.0.0.1", "[::1]", "tauri.localhost"];
/// The schemes of apps and of editors' web views.
const APPS: [&str; 5] = ["app", "file", "tauri", "vscode-webview", "vscode-file"];
/// How long a browser may cache the response to a preflight request [s]. Chromium caches none longer.
const MAX_AGE: &str = "7200";
/// The response headers that pages may read in addition to those that every page may read.
const EXPOSED: &str = "x-request-id, request-id, traceparent, retry-after, retry-after-ms, x-should-retry, penstock-ignored-fields, \
                       x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
                       x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";
/// The longest list of headers that a preflight request may name [bytes].
const MAX_REQUESTED: usize = 2048;

pub struct Cors {
    origins: Vec<String>,
    /// Whether only this machine reaches the server.
    is_loopback: bool,
}

impl Cors {
    /// `bound`: the address that the server listens on.
    pub fn new(origins: &[String], bound: IpAddr) -> Self {
        Self { origins: origins.to_vec(), is_loopback: bound.is_loopback() }
    }

    /// Returns the origin that a request names, if its pages may send this request. `is_open`: whether any page of this machine may.
    pub fn allowed(&self, headers: &HeaderMap, is_open: impl FnOnce() -> bool) -> Option<HeaderValue> {
        let origin = headers.get(header::ORIGIN)?;
        (self.is_listed(origin) || self.is_loopback && is_local(origin) && is_open()).then(|| origin.clone())
    }

    /// Whether the configuration lists the origin that a request names.
    pub fn lists(&self, headers: &HeaderMap) -> bool {
        headers.get(header::ORIGIN).is_some_and(|origin| self.is_listed(origin))
    }

    fn is_listed(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|listed| listed == "*" || listed.as_bytes() == origin.as_bytes())
    }

    /// Answers a preflight request of an allowed origin, and logs one of another origin. No key is needed, because browsers send none.
    /// `allowed`: the result of [`Cors::allowed`].
    pub fn preflight(&self, request: &ServiceRequest, allowed: Option<&HeaderValue>) -> Option<HttpResponse> {
        let headers = request.headers();
        let (origin, method) = (headers.get(header::ORIGIN)?, announced(request)?);
        let Some(allowed) = allowed else {
            tracing::warn!(
                "a page of {} may not send {} {}: server.cors_origins lists the origins whose pages may",
                quoted(&String::from_utf8_lossy(origin.as_bytes())),
                quoted(method),
                quoted(request.path())
            );
            return None;
        };
        let methods = if self.is_listed(allowed) { METHODS } else { LOCAL_METHODS };
        let mut response = HttpResponse::NoContent();
        response.insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, methods)).insert_header((header::ACCESS_CONTROL_MAX_AGE, MAX_AGE));
        // Clients name their own headers here, which the server ignores.
        if let Some(requested) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).filter(|value| is_list_of_names(value)) {
            response.insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone()));
        }
        Some(response.finish())
    }

    /// Adds the CORS headers to a response. `origin` is the result of [`Cors::allowed`].
    pub fn mark(&self, headers: &mut HeaderMap, origin: Option<HeaderValue>) {
        if self.origins.is_empty() && !self.is_loopback {
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

/// The method that a preflight request announces. None if the request is none.
pub fn announced(request: &ServiceRequest) -> Option<&str> {
    let method = request.headers().get(header::ACCESS_CONTROL_REQUEST_METHOD).filter(|_| request.method() == Method::OPTIONS);
    method.map(|method| method.to_str().unwrap_or_default())
}

/// Whether an origin is that of a page or an app of this machine.
fn is_local(origin: &HeaderValue) -> bool {
    let Some((scheme, rest)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else { return false };
    match scheme {
        "http" | "https" => name_of(rest).is_some_and(|name| LOCAL_HOSTS.contains(&name)),
        app => APPS.contains(&app),
    }
}

/// Whether a value is a list of header names.
fn is_list_of_names(value: &HeaderValue) -> bool {
    let is_name = |name: &str| HeaderName::from_bytes(name.trim().as_bytes()).is_ok();
    value.len() <= MAX_REQUESTED && value.to_str().is_ok_and(|text| text.split(',').all(is_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_origins_of_this_machine_and_of_apps_are_local() {
        let is_local = |origin: &str| is_local(&HeaderValue::from_str(origin).unwrap());
        for ours in [
            "http://localhost",
            "http://localhost:3000",
            "https://localhost:8443",
            "http://127.0.0.1:5173",
            "http://[::1]:80",
            "https://[::1]",
            "http://tauri.localhost",
            "app://obsidian.md",
            "app://",
            "file://",
            "tauri://localhost",
            "vscode-webview://1a2b",
            "vscode-file://vscode-app",
        ] {
            assert!(is_local(ours), "{ours}");
        }
        for other in [
            "null",
            "",
            "*",
            "localhost",
            "http://localhost.evil.example",
            "http://evil.localhost",
            "http://localhost:3000.evil.example",
            "http://localhost@evil.example",
            "http://127.0.0.1.nip.io",
            "http://127.0.0.2",
            "http://10.0.0.1:3000",
            "http://[::2]",
            "https://evil.example",
            "chrome-extension://abc",
            "xapp://x",
            "ftp://localhost",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
