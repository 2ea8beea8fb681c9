//! The check of the `Host` header. On a loopback address, the server answers only requests for local names and for the names in
//! `server.allowed_hosts`. This stops DNS rebinding, in which another site's page makes the site's name resolve to this machine. On other
//! addresses, the server answers for any host unless that list is set.

use std::net::IpAddr;

use actix_web::dev::ServiceRequest;
use actix_web::http::{Version, header};

use super::error::{ApiError, Kind, quoted};

/// The hosts that the server answers for.
pub struct Hosts {
    /// The address that the server listens on.
    bound: IpAddr,
    allowed: Vec<String>,
}

impl Hosts {
    pub fn new(bound: IpAddr, allowed: &[String]) -> Self {
        Self { bound, allowed: allowed.to_vec() }
    }

    fn contains(&self, value: &str) -> bool {
        if !self.bound.is_loopback() && self.allowed.is_empty() {
            return true;
        }
        let Some(name) = name_of(value) else { return false };
        let is_below = |domain: &str| name.len() > domain.len() && name.to_ascii_lowercase().ends_with(domain);
        let is_listed = |listed: &String| match listed.strip_prefix('*') {
            Some(domain) => is_below(domain),
            None => name.eq_ignore_ascii_case(listed),
        };
        // A name can be made to resolve to this machine, but an address cannot. Probes use the machine's own address.
        is_local(name) || self.allowed.iter().any(is_listed) || !self.bound.is_loopback() && address(name).is_some()
    }
}

pub fn check(request: &ServiceRequest, allowed: &Hosts) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST);
    let (host, second) = (hosts.next(), hosts.next());
    if host.is_none() && request.version() == Version::HTTP_11 {
        return Err(ApiError::new(Kind::MalformedHead, "an HTTP/1.1 request must have a host header"));
    }
    if second.is_some() {
        return Err(ApiError::new(Kind::MalformedHead, "a request must have one host header"));
    }
    // The request target may also name a host: `GET http://host/path`.
    let names = [host.map(|host| String::from_utf8_lossy(host.as_bytes())), request.uri().authority().map(|name| name.as_str().into())];
    match names.into_iter().flatten().find(|name| !allowed.contains(name)) {
        Some(name) => {
            let hint = "its operator can add a name to server.allowed_hosts";
            Err(ApiError::new(Kind::ForbiddenHost, format!("this server does not answer for the host `{}`: {hint}", quoted(&name))))
        }
        None => Ok(()),
    }
}

/// Returns the host of `host` or `host:port`, with the brackets of an IPv6 address. `None` if `value` has neither form.
pub fn name_of(value: &str) -> Option<&str> {
    let end = match value.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => value.find(':').unwrap_or(value.len()),
    };
    let (name, port) = value.split_at(end);
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = !name.is_empty() && !name.contains(['/', '@', '?', '#', '\\']);
    (is_name && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))).then_some(name)
}

fn address(name: &str) -> Option<IpAddr> {
    name.strip_prefix('[').map_or(name, |rest| rest.trim_end_matches(']')).parse().ok()
}

/// Whether a `Host` header names this machine.
pub fn is_local_host(value: &str) -> bool {
    name_of(value).is_some_and(is_local)
}

/// Whether a host is `localhost` or a loopback address.
fn is_local(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || address(name).is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(bound: &str, allowed: &[&str]) -> Hosts {
        Hosts::new(bound.parse().unwrap(), &allowed.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn only_local_names_pass_on_a_loopback_address() {
        let hosts = hosts("127.0.0.1", &[]);
        for good in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080"] {
            assert!(hosts.contains(good), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "localhost/v1/models?",
            "localhost:",
            "localhost:8x",
            "[::1",
            "0.0.0.0",
            "10.0.0.1",
            "",
            "127.0.0.1.nip.io",
        ] {
            assert!(!hosts.contains(bad), "{bad}");
        }
    }

    #[test]
    fn a_list_adds_names_on_a_loopback_address_and_excludes_others_elsewhere() {
        for bound in ["127.0.0.1", "0.0.0.0"] {
            let hosts = hosts(bound, &["llm.example", "*.corp.example"]);
            for good in ["llm.example", "LLM.example:443", "a.corp.example", "a.b.corp.example:1", "localhost", "[::1]:80"] {
                assert!(hosts.contains(good), "{good}");
            }
            for bad in ["evil.example", "xllm.example", "llm.example.evil", "corp.example", ".corp.example", "xcorp.example", "é.corp", ""]
            {
                assert!(!hosts.contains(bad), "{bad}");
            }
            assert_eq!(hosts.contains("10.0.0.1:80"), bound == "0.0.0.0", "any address passes unless the server is bound to loopback");
        }
        assert!(hosts("0.0.0.0", &[]).contains("any.example:80") && hosts("127.0.0.1", &["*"]).contains("any.example"));
    }
}
