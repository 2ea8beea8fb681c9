//! The check of the `Host` header. A server on a loopback address answers only requests for local names. This stops DNS rebinding, in which
//! a page of another site makes the site's name resolve to this machine.

use std::net::IpAddr;

use actix_web::dev::ServiceRequest;
use actix_web::http::{Version, header};

use super::error::{ApiError, Kind, quoted};

pub fn check(request: &ServiceRequest, bound: IpAddr) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST);
    let (host, second) = (hosts.next(), hosts.next());
    if host.is_none() && request.version() == Version::HTTP_11 {
        return Err(ApiError::new(Kind::MalformedHead, "an HTTP/1.1 request must have a host header"));
    }
    if second.is_some() {
        return Err(ApiError::new(Kind::MalformedHead, "a request must have one host header"));
    }
    // The target of a request may name a host, too: `GET http://host/path`.
    let names = [host.map(|host| String::from_utf8_lossy(host.as_bytes())), request.uri().authority().map(|name| name.as_str().into())];
    match names.into_iter().flatten().find(|name| bound.is_loopback() && !is_local(name)) {
        Some(name) => Err(ApiError::new(Kind::ForbiddenHost, format!("this server does not answer for the host `{}`", quoted(&name)))),
        None => Ok(()),
    }
}

/// Whether `value` is `host` or `host:port` with `localhost` or a loopback address as its host.
fn is_local(value: &str) -> bool {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if let Some(rest) = value.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else { return false };
        return (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)) && is_loopback(address);
    }
    let name = match value.split_once(':') {
        Some((name, port)) if is_port(port) => name,
        Some(_) => return false,
        None => value,
    };
    name.eq_ignore_ascii_case("localhost") || is_loopback(name)
}

fn is_loopback(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_local_names_pass() {
        for good in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"] {
            assert!(is_local(good), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "localhost/v1/models?",
            "localhost:",
            "localhost:8x",
            "[::1",
            "0.0.0.0",
            "",
            "127.0.0.1.nip.io",
        ] {
            assert!(!is_local(bad), "{bad}");
        }
    }
}
