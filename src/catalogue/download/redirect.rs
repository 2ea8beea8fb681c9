//! Checks the redirects of a download.

use std::net::IpAddr;

use ureq::http::Uri;

use super::error::PullError;
use outside::is_public;

/// Whether two URLs have the same scheme, host and port.
pub fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| {
        uri.port_u16().or(match uri.scheme_str() {
            Some("https") => Some(443),
            Some("http") => Some(80),
            _ => None,
        })
    };
    a.scheme() == b.scheme() && a.host().map(str::to_ascii_lowercase) == b.host().map(str::to_ascii_lowercase) && port(a) == port(b)
}

/// Returns the target of a redirect. Allowed are the origin that the user named, and https to a public host.
pub fn redirect(start: &Uri, from: &Uri, location: &str) -> Result<Uri, PullError> {
    let host = from.host().unwrap_or_default();
    let refused = |why: &str| PullError::Refused(format!("{host}: a redirect to {location:?} is refused: {why}"));
    let target = join(from, location);
    if !target.starts_with("https://") && !target.starts_with("http://") {
        return Err(refused("it is not https"));
    }
    let target: Uri = target.parse().map_err(|_| refused("it is not a valid URL"))?;
    if same_origin(start, &target) {
        return Ok(target);
    }
    if target.scheme_str() != Some("https") {
        return Err(refused("it is not https"));
    }
    let name = target.host().unwrap_or_default();
    let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if name.is_empty() || name.eq_ignore_ascii_case("localhost") || literal.is_ok_and(|ip| !is_public(ip)) {
        return Err(refused("it is not a public address"));
    }
    Ok(target)
}

/// Resolves a reference against a URL, as far as redirects need it (RFC 3986, 5.2).
fn join(base: &Uri, reference: &str) -> String {
    let reference = reference.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or_default();
    let authority = base.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let name = reference.split([':', '/', '?']).next().unwrap_or_default();
    if reference[name.len()..].starts_with(':') && name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        reference.to_owned()
    } else if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{reference}")
    } else if reference.starts_with('?') {
        format!("{scheme}://{authority}{}{reference}", base.path())
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{reference}")
    }
}
