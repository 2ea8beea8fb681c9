//! Correction of request paths. Clients get base addresses with or without `/v1` and with or without a trailing slash, so paths arrive
//! without `/v1`, with `/v1` twice, or with an extra slash. Such a path is corrected before anything reads it, so keys, limits, routes,
//! metric labels and dialects see one path per route.
//!
//! Only paths that a dialect owns are corrected. Operators' paths must be exact, because proxies block them by name.

use std::sync::OnceLock;

use actix_web::dev::{ServiceRequest, Url};
use actix_web::http::Uri;
use actix_web::http::uri::PathAndQuery;
use serde_json::Value;

use super::dialect::Dialects;
use super::field_schema::nearest;

/// The longest path that is matched against the routes as a misspelling [bytes].
const MAX_LENGTH: usize = 256;

/// Corrects the path of a request if it has no route as sent.
pub fn put_right(request: &mut ServiceRequest, dialects: &Dialects) {
    let (uri, map) = (request.uri().clone(), request.resource_map());
    if is_plain(uri.path()) && map.has_resource(request.path()) {
        return;
    }
    let leads = |path: &str| dialects.owns(path) && with_path(&uri, path).is_some_and(|uri| map.has_resource(Url::new(uri).path()));
    let right = meant(uri.path(), dialects.base(), leads).and_then(|path| with_path(&uri, &path));
    if let Some(uri) = right {
        request.match_info_mut().set(Url::new(uri.clone()));
        request.head_mut().uri = uri;
    }
}

/// Whether every slash begins a segment.
fn is_plain(path: &str) -> bool {
    !path.contains("//") && !path.ends_with('/')
}

/// Returns the path that `sent` was meant to be, if it differs. `base` is the prefix that clients omit, and `leads` says whether a path has
/// a route.
fn meant(sent: &str, base: &str, leads: impl Fn(&str) -> bool) -> Option<String> {
    if !sent.starts_with('/') {
        return None;
    }
    let segments: Vec<&str> = sent.split('/').filter(|segment| !segment.is_empty()).collect();
    let path = |segments: &[&str]| format!("/{}", segments.join("/"));
    let is_twice = segments.len() > 2 && segments[0] == segments[1];
    let once = is_twice.then(|| path(&segments[1..]));
    let plain = path(&segments);
    let based = format!("{base}{plain}");
    [plain].into_iter().chain(once).chain([based]).find(|path| leads(path)).filter(|path| path != sent)
}

/// Returns `uri` with another path.
fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    let whole = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    parts.path_and_query = Some(PathAndQuery::try_from(whole).ok()?);
    Uri::from_parts(parts).ok()
}

/// The paths of all routes, to suggest one for a path without a route.
pub struct Directory {
    paths: OnceLock<Vec<String>>,
    /// Makes the part of the OpenAPI document that belongs to no dialect.
    shared: fn(&Dialects) -> Value,
}

impl Directory {
    pub fn new(shared: fn(&Dialects) -> Value) -> Self {
        Self { paths: OnceLock::new(), shared }
    }

    /// Returns the path that was most likely meant by one without a route.
    pub fn nearest(&self, sent: &str, dialects: &Dialects) -> Option<&str> {
        let paths_of = |document: Value| document["paths"].as_object().map(|paths| paths.keys().cloned().collect::<Vec<_>>());
        let documents = || dialects.iter().map(|dialect| dialect.document().json).chain([(self.shared)(dialects)]);
        let paths = self.paths.get_or_init(|| documents().filter_map(paths_of).flatten().collect());
        if sent.len() <= MAX_LENGTH { nearest_of(paths, &sent.to_ascii_lowercase()) } else { None }
    }
}

/// From this similarity on, one path is a slip of the pen for another of the same depth.
const SLIP: f64 = 0.9;

/// Returns the path that is spelled almost like `sent`, or the one that shares the most trailing segments with it. If several do, the one
/// with the most similar spelling wins.
fn nearest_of<'a>(paths: &'a [String], sent: &str) -> Option<&'a str> {
    let depth = |path: &str| path.split('/').count();
    let spelled = paths.iter().filter(|path| depth(path) == depth(sent));
    let spelled = spelled.map(|path| (strsim::normalized_damerau_levenshtein(path, sent), path.as_str()));
    if let Some((_, path)) = spelled.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness >= SLIP) {
        return Some(path);
    }
    let scored = paths.iter().map(|path| (common_end(path, sent), strsim::normalized_damerau_levenshtein(path, sent), path.as_str()));
    let best = scored.filter(|(length, ..)| *length > 0).max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    // A base address is not a misspelling of a path below it.
    let is_as_deep = |path: &&str| depth(path) == depth(sent);
    best.map(|(.., path)| path).or_else(|| nearest(paths.iter().map(String::as_str).filter(is_as_deep), sent))
}

/// Counts the trailing segments that two paths share. `{id}` in `path` matches any segment, but does not count as a shared name itself.
fn common_end(path: &str, sent: &str) -> usize {
    let is_free = |segment: &str| segment.starts_with('{');
    let ends = path.rsplit('/').zip(sent.trim_end_matches('/').rsplit('/')).filter(|(ours, _)| !ours.is_empty());
    let same: Vec<&str> = ends.take_while(|(ours, theirs)| is_free(ours) || ours == theirs).map(|(ours, _)| ours).collect();
    if same.iter().all(|segment| is_free(segment)) { 0 } else { same.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(sent: &str) -> String {
        let routes = ["/v1/chat/completions", "/v1/models", "/v1/models/a/b", "/api/chat", "/v1/messages", "/rerank", "/v1/rerank"];
        meant(sent, "/v1", |path| routes.contains(&path)).unwrap_or_else(|| "-".into())
    }

    #[test]
    fn a_path_without_its_base_with_it_twice_or_with_more_slashes_is_put_right() {
        for (sent, path) in [
            ("/v1/chat/completions", "-"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/chat/completions/", "/v1/chat/completions"),
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1/chat//completions///", "/v1/chat/completions"),
            ("/v1/v1/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/v1/chat/completions", "-"),
            ("/api/api/chat/", "/api/chat"),
            ("/messages", "/v1/messages"),
            ("/v1/models/a/b/", "/v1/models/a/b"),
            ("/models/", "/v1/models"),
            ("/rerank", "-"),
            ("/rerank/", "/rerank"),
            ("/v1/api/chat", "-"),
            ("/api/v1/models", "-"),
            ("/v1/v1", "-"),
            ("/v1/", "-"),
            ("/", "-"),
            ("//", "-"),
            ("", "-"),
            ("*", "-"),
            ("/%2fv1/models", "-"),
        ] {
            assert_eq!(right(sent), path, "{sent}");
        }
    }

    #[test]
    fn another_path_keeps_the_query_and_the_host() {
        let with = |uri: &'static str| with_path(&Uri::from_static(uri), "/b").unwrap().to_string();
        assert_eq!([with("/a?x=%2F"), with("http://h:1/a?y"), with("/a")], ["/b?x=%2F", "http://h:1/b?y", "/b"]);
        assert!(with_path(&Uri::from_static("/a"), "/a b").is_none());
    }

    #[test]
    fn the_nearest_path_ends_as_the_sent_one_or_is_spelled_alike() {
        let paths =
            ["/v1/chat/completions", "/v1/completions", "/api/chat", "/health", "/v1/responses/{id}/cancel", "/v1/batches/{id}/cancel"];
        let paths = paths.map(str::to_owned);
        let near = |sent: &str| nearest_of(&paths, &sent.to_ascii_lowercase()).unwrap_or("-");
        for (sent, path) in [
            ("/openai/v1/chat/completions", "/v1/chat/completions"),
            ("/api/v0/completions", "/v1/completions"),
            ("/chat", "/api/chat"),
            ("/V1/Chat/Completions", "/v1/chat/completions"),
            ("/v1/chat/completion", "/v1/chat/completions"),
            ("/health/", "/health"),
            ("/healthz", "/health"),
            ("/v1/response/resp_1/cancel", "/v1/responses/{id}/cancel"),
            ("/nothing/alike", "-"),
            ("/v1", "-"),
            ("/", "-"),
        ] {
            assert_eq!(near(sent), path, "{sent}");
        }
    }
}
