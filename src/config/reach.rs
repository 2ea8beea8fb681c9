//! Checks the settings that limit access by host and origin.

/// Checks a name of `server.allowed_hosts`: a host without a port, `*.domain`, or `*`.
pub(super) fn check_host(name: &str) -> Result<(), String> {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    if name == "*" || is_host(rest) {
        return Ok(());
    }
    Err(format!("{name:?} is not a host: expected a name without scheme and port, such as \"llm.example.com\" or \"*.example.com\""))
}

/// Checks a host of `server.picture_hosts`: like `server.allowed_hosts`, and it may end in a port.
pub(super) fn check_picture_host(entry: &str) -> Result<(), String> {
    let port = entry.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
    let (name, port) = port.map_or((entry, None), |(name, port)| (name, Some(port)));
    match port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0)) {
        true => check_host(name),
        false => Err(format!("{entry:?}: expected a host, or a host and a port, such as \"*.example.com\" or \"10.0.0.5:8000\"")),
    }
}

/// Checks an origin of `server.cors_origins`: an origin as browsers send it, or `*`.
pub(super) fn check_origin(origin: &str) -> Result<(), String> {
    let is_origin = origin.split_once("://").is_some_and(|(scheme, rest)| {
        let (host, port) = rest.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or((rest, None), |(h, p)| (h, Some(p)));
        let is_scheme = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c));
        is_scheme && is_host(host) && port.is_none_or(|port| port.parse::<u16>().is_ok())
    });
    if origin == "*" || is_origin {
        return Ok(());
    }
    Err(format!("{origin:?} is not an origin: expected \"https://app.example.com\" or \"http://localhost:3000\", without a path, or \"*\""))
}

/// Whether `name` is a host name in lower case or an address, as browsers write them.
fn is_host(name: &str) -> bool {
    let is_address =
        name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(|ip| ip.parse::<std::net::Ipv6Addr>().is_ok());
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c));
    is_address || name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_neither_scheme_nor_port() {
        for good in ["*", "a", "llm.example.com", "*.example.com", "10.0.0.1", "[::1]"] {
            assert_eq!(check_host(good), Ok(()), "{good}");
        }
        for bad in ["", "A.example", "https://a", "a:80", "a/b", "a..b", "*a.b", "**", "a.*.b", "[x]", "a b"] {
            assert!(check_host(bad).unwrap_err().contains(&format!("{bad:?}")), "{bad}");
        }
    }

    #[test]
    fn hosts_of_pictures_may_have_a_port() {
        for good in ["*", "a.example", "*.example.com", "a.example:8443", "10.0.0.1:80", "[::1]", "[::1]:9000"] {
            assert_eq!(check_picture_host(good), Ok(()), "{good}");
        }
        for bad in ["", "https://a", "a:", "a:0", "a:x", "a:70000", "::1", "a/b:1", "A.example"] {
            assert!(check_picture_host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_have_no_path() {
        for good in
            ["*", "https://a.example", "http://localhost:3000", "http://[::1]:8", "http://[::1]", "chrome-extension://abc", "app://x"]
        {
            assert_eq!(check_origin(good), Ok(()), "{good}");
        }
        for bad in
            ["", "null", "https://a/", "https://a/b", "https://A", "a.example", "https://", "https://*.a", "https://a:x", "https://u@a"]
        {
            assert!(check_origin(bad).unwrap_err().contains(&format!("{bad:?}")), "{bad}");
        }
    }
}
