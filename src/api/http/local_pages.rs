//! Decides which requests pages and apps of this machine may send without being listed in the configuration: those that generate, and
//! those that only read.

use actix_web::dev::ServiceRequest;

use super::cors::announced;
use super::dialect::Dialects;

/// The paths that belong to no dialect and that they may read.
const LISTS: [&str; 10] = ["/", "/models", "/health", "/ready", "/version", "/openapi.json", "/ping", "/load", "/props", "/slots"];

/// Whether a request, or the one that a preflight request announces, changes nothing that the server keeps.
pub fn are_served(request: &ServiceRequest, dialects: &Dialects) -> bool {
    // Routes are found by the decoded path, so that decides here, too.
    let path = request.match_info().get_ref().path();
    match announced(request).unwrap_or(request.method().as_str()) {
        "GET" | "HEAD" => LISTS.contains(&path) || dialects.owns(path) && !dialects.keeps(path),
        "POST" => dialects.owns(path) && !dialects.keeps(path),
        _ => false,
    }
}
