//! Fetches pictures that requests name by URL, from the hosts of `server.picture_hosts` alone.
//!
//! A host is resolved once per hop. Each of its addresses is checked, and the connection goes to a checked address, so that no second
//! answer of the name server can lead elsewhere. Redirects are followed here, each like a URL of its own.

use std::io::Read;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outside::is_public;
use tokio::sync::Semaphore;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{HeaderMap, Uri, header};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// The setting that lists the hosts.
const SETTING: &str = "server.picture_hosts";
const MAX_URL: usize = 8192;
const MAX_REDIRECTS: usize = 3;
/// The most addresses of a host that are tried.
const MAX_ADDRESSES: usize = 16;
/// The most pictures that are fetched at once, each with its thread and its bytes.
const MAX_FETCHES: usize = 16;

/// Resolves a host's name.
pub type Resolve = dyn Fn(&str, u16) -> std::io::Result<Vec<SocketAddr>> + Send + Sync;

/// Which pictures are fetched, and within which limits. Cheap to clone.
#[derive(Clone)]
pub struct UrlPolicy {
    hosts: Arc<[String]>,
    fetches: Arc<Semaphore>,
    resolve: Arc<Resolve>,
    /// The longest time of a fetch with its redirects.
    time: Duration,
    /// The largest picture [bytes].
    most: u64,
}

/// Why a picture is not fetched. The texts are for clients: they name neither addresses nor what a server answers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("pictures are not fetched from URLs here: send the picture as a data: URL, or let the operator list hosts in {SETTING}")]
    Off,
    #[error("the URL {0}")]
    Malformed(&'static str),
    #[error("pictures are not fetched from `{0}`: send the picture as a data: URL, or let the operator add the host to {SETTING}")]
    NotAllowed(String),
    #[error("`{0}` has no public address, and pictures are fetched from the public internet only")]
    NotPublic(String),
    #[error("`{0}` cannot be reached: check the URL, or send the picture as a data: URL")]
    Unreachable(String),
    #[error("`{host}` answers with status {status}: check the URL, or send the picture as a data: URL")]
    Status { host: String, status: u16 },
    #[error("the redirect of `{0}` leads nowhere: name the picture's own URL")]
    Redirect(String),
    #[error("the URL has more than {MAX_REDIRECTS} redirects: name the picture's own URL")]
    TooManyRedirects,
    #[error("the picture has more than {0} bytes: send a smaller one")]
    TooLarge(u64),
    #[error("the picture did not arrive within {0} s: send it as a data: URL")]
    TooSlow(u64),
}

impl UrlPolicy {
    /// `hosts`: the setting `server.picture_hosts`.
    pub fn new(hosts: &[String]) -> Self {
        Self {
            hosts: hosts.into(),
            fetches: Arc::new(Semaphore::new(MAX_FETCHES)),
            resolve: Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect())),
            time: Duration::from_secs(10),
            most: 20 << 20,
        }
    }

    /// Whether the list has the host of a URL, and whether it names that very address.
    fn allows(&self, url: &Target) -> Option<bool> {
        let is_of = |entry: &str| {
            let port = entry.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
            let (name, port) = port.map_or((entry, url.default_port()), |(name, port)| (name, port.parse().unwrap_or(0)));
            let is_named = match name.strip_prefix('*') {
                Some("") => true,
                Some(domain) => url.host.len() > domain.len() && url.host.ends_with(domain),
                None => name == url.host,
            };
            (is_named && port == url.port).then_some(name == url.host && url.address().is_some())
        };
        self.hosts.iter().filter_map(|entry| is_of(entry)).max()
    }

    /// The addresses to connect to.
    fn addresses(&self, url: &Target) -> Result<Vec<SocketAddr>, FetchError> {
        let Some(names_address) = self.allows(url) else { return Err(FetchError::NotAllowed(url.host.clone())) };
        let all = match url.address() {
            Some(ip) => vec![SocketAddr::new(ip, url.port)],
            None => (self.resolve)(&url.host, url.port).map_err(|_| FetchError::Unreachable(url.host.clone()))?,
        };
        // One address that is not public makes the answer suspicious as a whole.
        if all.is_empty() || !names_address && all.iter().any(|address| !is_public(address.ip())) {
            return Err(FetchError::NotPublic(url.host.clone()));
        }
        Ok(all.into_iter().take(MAX_ADDRESSES).map(|address| SocketAddr::new(address.ip(), url.port)).collect())
    }
}

/// Fetches a picture. Its bytes are whatever the server sends: the caller tells the format and decodes within limits.
///
/// # Errors
/// The URL is not allowed, or the picture cannot be had within 10 s and 20 MiB.
pub async fn fetch(url: &str, policy: &UrlPolicy) -> Result<Vec<u8>, FetchError> {
    if policy.hosts.is_empty() {
        return Err(FetchError::Off);
    }
    let target = Target::parse(url)?;
    let (end, slow) = (Instant::now() + policy.time, || FetchError::TooSlow(policy.time.as_secs()));
    let blocking = async {
        let permit = policy.fetches.clone().acquire_owned().await.map_err(|_| slow())?;
        let policy = policy.clone();
        let task = tokio::task::spawn_blocking(move || {
            // A resolver that hangs outlives its request, so that its thread keeps the permit.
            let _permit = permit;
            follow(target, &policy, end)
        });
        task.await.map_err(|_| slow())?
    };
    tokio::time::timeout(policy.time, blocking).await.map_err(|_| slow())?
}

/// Fetches a picture with its redirects. Blocks.
fn follow(mut url: Target, policy: &UrlPolicy, end: Instant) -> Result<Vec<u8>, FetchError> {
    for _ in 0..=MAX_REDIRECTS {
        match hop(&url, policy, end)? {
            Hop::Picture(bytes) => return Ok(bytes),
            Hop::Redirect(next) => url = next,
        }
    }
    Err(FetchError::TooManyRedirects)
}

enum Hop {
    Picture(Vec<u8>),
    Redirect(Target),
}

/// Sends one request.
fn hop(url: &Target, policy: &UrlPolicy, end: Instant) -> Result<Hop, FetchError> {
    let addresses = policy.addresses(url)?;
    let left = end.saturating_duration_since(Instant::now());
    let slow = FetchError::TooSlow(policy.time.as_secs());
    if left.is_zero() {
        return Err(slow);
    }
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        // A proxy of the environment would resolve the host again.
        .proxy(None)
        .accept_encoding("identity")
        .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
        .timeout_global(Some(left))
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), Pinned(addresses));
    let fault = |error: &ureq::Error| match error {
        ureq::Error::Timeout(_) => FetchError::TooSlow(policy.time.as_secs()),
        _ => FetchError::Unreachable(url.host.clone()),
    };
    let response = agent.get(&url.uri).call().map_err(|error| fault(&error))?;
    match response.status().as_u16() {
        200 => {}
        301 | 302 | 303 | 307 | 308 => {
            let location = text(response.headers(), header::LOCATION).ok_or_else(|| FetchError::Redirect(url.host.clone()))?;
            return url.join(location).map(Hop::Redirect);
        }
        status => return Err(FetchError::Status { host: url.host.clone(), status }),
    }
    let length = text(response.headers(), header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > policy.most) {
        return Err(FetchError::TooLarge(policy.most));
    }
    let mut bytes = Vec::new();
    let read = response.into_body().into_reader().take(policy.most + 1).read_to_end(&mut bytes);
    if read.is_err() {
        return Err(if Instant::now() >= end { slow } else { FetchError::Unreachable(url.host.clone()) });
    }
    if bytes.len() as u64 > policy.most { Err(FetchError::TooLarge(policy.most)) } else { Ok(Hop::Picture(bytes)) }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns addresses that were checked, whatever the URI.
#[derive(Debug)]
struct Pinned(Vec<SocketAddr>);

impl Resolver for Pinned {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut all = self.empty();
        self.0.iter().for_each(|address| all.push(*address));
        Ok(all)
    }
}

/// A URL in parts.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    uri: Uri,
    /// In lower case. An address of IPv6 has brackets.
    host: String,
    port: u16,
}

impl Target {
    fn parse(url: &str) -> Result<Self, FetchError> {
        let bad = |what| Err(FetchError::Malformed(what));
        if url.len() > MAX_URL {
            return bad("is longer than 8192 characters: send the picture as a data: URL");
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
            return bad("has characters that must be percent-encoded");
        }
        // Servers do not see the fragment.
        let whole = url.split('#').next().unwrap_or_default();
        let default = match whole.split_once("://") {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => 443,
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => 80,
            _ => return bad("must begin with https:// or http://, or be a data: URL"),
        };
        let Ok(uri) = whole.parse::<Uri>() else { return bad("is malformed: expected https://HOST/PATH") };
        let Some(authority) = uri.authority() else { return bad("has no host") };
        if authority.as_str().contains('@') {
            return bad("has a user name or a password, which would be sent on: remove it");
        }
        let has_port = authority.as_str().len() > authority.host().len();
        let port = if has_port { authority.port_u16().filter(|port| *port > 0) } else { Some(default) };
        let Some(port) = port else { return bad("has no valid port") };
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        if host.is_empty() {
            return bad("has no host");
        }
        Ok(Self { host, port, uri })
    }

    fn default_port(&self) -> u16 {
        if self.uri.scheme_str() == Some("https") { 443 } else { 80 }
    }

    /// The address, if the host is one.
    fn address(&self) -> Option<IpAddr> {
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }

    /// The target of a redirect.
    fn join(&self, location: &str) -> Result<Self, FetchError> {
        let (scheme, authority) =
            (self.uri.scheme_str().unwrap_or("https"), self.uri.authority().map_or("", |authority| authority.as_str()));
        let path = self.uri.path();
        let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
        let next = match location {
            _ if location.contains("://") => location.to_owned(),
            _ if location.starts_with("//") => format!("{scheme}:{location}"),
            _ if location.starts_with('/') => format!("{scheme}://{authority}{location}"),
            _ if location.starts_with('?') => format!("{scheme}://{authority}{path}{location}"),
            _ => format!("{scheme}://{authority}{folder}{location}"),
        };
        let next = Self::parse(&next).map_err(|_| FetchError::Redirect(self.host.clone()))?;
        // What was asked for in private must not go on in the open.
        match scheme == "https" && next.uri.scheme_str() != Some("https") {
            true => Err(FetchError::Redirect(self.host.clone())),
            false => Ok(next),
        }
    }
}

#[cfg(test)]
#[path = "picture_url_tests.rs"]
mod tests;
