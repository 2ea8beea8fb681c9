//! The server's view of an API dialect: the paths that it owns, its routes, and the envelope of its errors.

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use actix_web::web::{Data, ServiceConfig};
use serde_json::Value;

use super::error::ApiError;
use super::openapi::Document;
use super::state::AppState;

/// An API dialect. Each has a folder next to `http/`, and nothing in `http/` knows a dialect by name.
pub trait Dialect: Send + Sync + 'static {
    /// The path prefixes that belong to the dialect, in whole segments: `/v1/messages` owns `/v1/messages/batches`, but not
    /// `/v1/messages-old`. The longest prefix wins. Base addresses end with the default dialect's first prefix.
    fn prefixes(&self) -> &'static [&'static str];

    /// The prefixes of the paths at which clients change what the server keeps, such as its models and files. Pages of this machine may use
    /// them only if the configuration lists their origin.
    fn keeping_prefixes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether the dialect claims a request whose path another dialect owns, judged by the request's headers.
    fn claims(&self, _path: &str, _headers: &HeaderMap) -> bool {
        false
    }

    /// Registers the dialect's routes and their shared state.
    fn routes(&self, config: &mut ServiceConfig);

    /// Starts the dialect's background work in the server's runtime.
    fn begin(&self, _state: &Data<AppState>) {}

    /// The dialect's error envelope. `id` is the request's, if there is a request.
    fn error_body(&self, error: &ApiError, id: Option<&str>) -> Value;

    /// The HTTP status that the dialect uses for an error.
    fn error_status(&self, error: &ApiError) -> StatusCode {
        error.kind.status()
    }

    /// Adds the headers that the dialect's clients read to every response. `id` is the request's.
    fn mark(&self, _headers: &mut HeaderMap, _id: &str) {}

    /// The dialect's part of the OpenAPI document.
    fn document(&self) -> Document;
}

/// Every dialect that the server speaks.
pub struct Dialects {
    default: Box<dyn Dialect>,
    others: Vec<Box<dyn Dialect>>,
}

impl Dialects {
    /// Creates the set of dialects. The `default` dialect also words the errors on paths that no dialect owns.
    pub fn new(default: Box<dyn Dialect>, others: Vec<Box<dyn Dialect>>) -> Self {
        Self { default, others }
    }

    pub fn iter(&self) -> impl Iterator<Item = &dyn Dialect> {
        std::iter::once(&self.default).chain(&self.others).map(|dialect| &**dialect)
    }

    pub fn default_dialect(&self) -> &dyn Dialect {
        &*self.default
    }

    /// The default dialect's prefix, which clients omit if their base address lacks it.
    pub fn base(&self) -> &'static str {
        self.default.prefixes().first().copied().unwrap_or_default()
    }

    /// Whether a dialect owns `path`.
    pub fn owns(&self, path: &str) -> bool {
        self.iter().any(|dialect| dialect.prefixes().iter().any(|prefix| owns(prefix, path)))
    }

    /// Whether clients change what the server keeps at `path`.
    pub fn keeps(&self, path: &str) -> bool {
        self.iter().any(|dialect| dialect.keeping_prefixes().iter().any(|prefix| owns(prefix, path)))
    }

    /// The dialects in the order in which their routes are tried. Another dialect may have a route on a path of the default one, for
    /// requests with its own headers.
    pub fn in_order_of_routes(&self) -> impl Iterator<Item = &dyn Dialect> {
        self.others.iter().chain(std::iter::once(&self.default)).map(|dialect| &**dialect)
    }

    /// The dialect of a request: the one that claims it, else the one that owns its path.
    pub fn of_request(&self, path: &str, headers: &HeaderMap) -> &dyn Dialect {
        let claiming = self.others.iter().map(|dialect| &**dialect).find(|dialect| dialect.claims(path, headers));
        claiming.unwrap_or_else(|| self.of(path))
    }

    /// The dialect that owns `path`.
    pub fn of(&self, path: &str) -> &dyn Dialect {
        let longest =
            |dialect: &dyn Dialect| dialect.prefixes().iter().filter(|prefix| owns(prefix, path)).map(|prefix| prefix.len()).max();
        let owner = self.others.iter().map(|dialect| &**dialect).max_by_key(|dialect| longest(*dialect));
        owner.filter(|dialect| longest(*dialect) > longest(&*self.default)).unwrap_or(&*self.default)
    }
}

fn owns(prefix: &str, path: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
