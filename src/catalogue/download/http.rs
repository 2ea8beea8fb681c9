//! Resumable https downloads. Redirects are followed here, not by the library, so that each one can be checked.

use std::io::{ErrorKind, Read};
use std::time::Duration;

use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use super::addresses::PublicOnly;
use super::error::PullError;
use super::partial::Partial;
use super::progress::Progress;
use super::redirect::{redirect, same_origin};

const MAX_REDIRECTS: usize = 8;
/// Consecutive attempts without a new byte before a download fails.
const MAX_ATTEMPTS: u32 = 5;
/// Advice for a download that failed again and again.
const ADVICE: &str = "check the connection and pull again, which continues where this pull stopped (HTTPS_PROXY names a proxy, HF_ENDPOINT \
                      a mirror of the hub)";

/// A file on a server.
pub struct Remote {
    pub url: String,
    /// Sent only to the URL's own origin.
    pub token: Option<String>,
    /// The pause after the first failed attempt. Doubles after each further one. Zero: there is only one attempt.
    pub backoff: Duration,
}

/// Fetches a file. Temporary faults are retried.
pub fn fetch(remote: &Remote, partial: &mut Partial, progress: &Progress) -> Result<(), PullError> {
    let client = Client::new(remote)?;
    if let Some(size) = partial.size() {
        if partial.bytes() == size {
            return Ok(());
        }
        partial.check_room(size)?;
    }
    let mut attempts = Attempts::new(remote, progress);
    loop {
        let before = partial.bytes();
        progress.check()?;
        match client.attempt(partial, progress) {
            Err(PullError::Network(fault)) => attempts.next(fault, partial.bytes() > before)?,
            done => return done,
        }
    }
}

/// The attempts of one download.
struct Attempts<'a> {
    remote: &'a Remote,
    progress: &'a Progress,
    /// The number of attempts since the last new byte.
    fruitless: u32,
}

impl<'a> Attempts<'a> {
    fn new(remote: &'a Remote, progress: &'a Progress) -> Self {
        Self { remote, progress, fruitless: 0 }
    }

    /// Waits for the next attempt after a fault. Only the first of several faults in a row is shown.
    ///
    /// # Errors
    /// There were enough attempts, or there is to be only one.
    fn next(&mut self, fault: String, has_new_bytes: bool) -> Result<(), PullError> {
        if self.remote.backoff.is_zero() {
            return Err(PullError::Network(fault));
        }
        self.fruitless = if has_new_bytes { 1 } else { self.fruitless + 1 };
        if self.fruitless >= MAX_ATTEMPTS {
            return Err(PullError::Network(format!("{fault}: {ADVICE}")));
        }
        if self.fruitless == 1 {
            self.progress.stage(&format!("{fault}: trying again, at most {MAX_ATTEMPTS} times"));
        }
        std::thread::sleep(self.remote.backoff * 2u32.pow(self.fruitless - 1));
        Ok(())
    }
}

/// A page of a listing.
pub struct Page {
    pub text: String,
    /// The URL of the next page (RFC 8288, `Link`).
    pub next: Option<String>,
}

/// Fetches a text of at most `cap` bytes. Temporary faults are retried.
pub fn fetch_text(remote: &Remote, cap: usize, progress: &Progress) -> Result<Page, PullError> {
    let client = Client::new(remote)?;
    let mut attempts = Attempts::new(remote, progress);
    loop {
        progress.check()?;
        match client.page(cap) {
            Err(PullError::Network(fault)) => attempts.next(fault, false)?,
            done => return done,
        }
    }
}

struct Client<'a> {
    remote: &'a Remote,
    start: Uri,
    /// For requests to the origin that the user named.
    named: Agent,
    /// For requests to the targets of redirects.
    public: Agent,
}

impl<'a> Client<'a> {
    fn new(remote: &'a Remote) -> Result<Self, PullError> {
        let start = remote.url.parse().map_err(|error| PullError::Refused(format!("url {:?}: {error}", remote.url)))?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .user_agent(concat!("penstock/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .build();
        let public = Agent::with_parts(config.clone(), DefaultConnector::default(), PublicOnly::default());
        Ok(Self { remote, start, named: config.new_agent(), public })
    }

    /// Sends one request, follows its redirects and reads as much of the body as arrives.
    fn attempt(&self, partial: &mut Partial, progress: &Progress) -> Result<(), PullError> {
        let from = partial.etag().filter(|_| partial.bytes() > 0).map(|etag| (partial.bytes(), etag));
        let response = self.open(from)?;
        if response.status() == 416 {
            partial.restart()?;
            return Err(PullError::Network(format!("{}: the file on the server has changed", host(&self.start))));
        }
        self.body(response, partial, progress)
    }

    fn page(&self, cap: usize) -> Result<Page, PullError> {
        let response = self.open(None)?;
        let next = text(response.headers(), header::LINK).and_then(next_of).map(str::to_owned);
        let mut bytes = Vec::new();
        let read = response.into_body().into_reader().take(cap as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| PullError::Network(format!("{}: {error}", host(&self.start))))?;
        match String::from_utf8(bytes) {
            Ok(text) if text.len() <= cap => Ok(Page { text, next }),
            _ => Err(PullError::Refused(format!("{}: expected a text of at most {cap} bytes", self.remote.url))),
        }
    }

    /// Sends one request and follows its redirects, up to an answer of 200, 206 or 416. `from`: the number of bytes on disk and their ETag,
    /// if the download continues.
    fn open(&self, from: Option<(u64, &str)>) -> Result<Response<Body>, PullError> {
        let mut url = self.start.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&url, from)?;
            let status = response.status();
            match status.as_u16() {
                200 | 206 | 416 => return Ok(response),
                301 | 302 | 303 | 307 | 308 => {
                    let location = text(response.headers(), header::LOCATION);
                    let location = location.ok_or_else(|| PullError::Refused(format!("{url}: a redirect without a location")))?;
                    url = redirect(&self.start, &url, location)?;
                }
                408 | 429 | 500..=599 => return Err(PullError::Network(format!("{} answers {status}", host(&url)))),
                401 | 403 => {
                    return Err(PullError::Refused(format!(
                        "{url} answers {status}: set HF_TOKEN to a token with access, or accept the model's licence on its page"
                    )));
                }
                _ => return Err(PullError::Refused(format!("{url} answers {status}"))),
            }
        }
        Err(PullError::Refused(format!("{}: more than {MAX_REDIRECTS} redirects", self.remote.url)))
    }

    fn request(&self, url: &Uri, from: Option<(u64, &str)>) -> Result<Response<Body>, PullError> {
        let at_home = same_origin(&self.start, url);
        let mut request = if at_home { self.named.get(url) } else { self.public.get(url) };
        if let Some(token) = self.remote.token.as_ref().filter(|_| at_home) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some((bytes, etag)) = from {
            request = request.header(header::RANGE, format!("bytes={bytes}-")).header(header::IF_RANGE, etag);
        }
        request.call().map_err(|error| client_fault(url, error))
    }

    fn body(&self, response: Response<Body>, partial: &mut Partial, progress: &Progress) -> Result<(), PullError> {
        let url = host(&self.start);
        let headers = response.headers();
        if text(headers, header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Err(PullError::Refused(format!("{url} sends an encoded body, but the request asked for a plain one")));
        }
        if response.status() == 200 {
            partial.restart()?;
        } else if !text(headers, header::CONTENT_RANGE).is_some_and(|range| range.starts_with(&format!("bytes {}-", partial.bytes()))) {
            partial.restart()?;
            return Err(PullError::Network(format!("{url} sends a different range than requested")));
        }
        let strong = text(headers, header::ETAG).filter(|etag| etag.starts_with('"')).map(str::to_owned);
        let rest = text(headers, header::CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
        let total = rest.map(|rest| partial.bytes().saturating_add(rest));
        if let (Some(expected), Some(found)) = (partial.size(), total.filter(|total| Some(*total) != partial.size())) {
            partial.discard();
            return Err(PullError::Size { expected, found: found.to_string() });
        }
        partial.set_etag(strong)?;
        if let Some(total) = total {
            partial.check_room(total)?;
            progress.set_total(total);
        }
        copy(&url, response, partial, progress)?;
        match total.or(partial.size()) {
            Some(total) if partial.bytes() < total => {
                Err(PullError::Network(format!("{url}: the body ends at {} of {total} bytes", partial.bytes())))
            }
            _ => Ok(()),
        }
    }
}

fn copy(url: &str, response: Response<Body>, partial: &mut Partial, progress: &Progress) -> Result<(), PullError> {
    let mut reader = response.into_body().into_reader();
    let mut buffer = vec![0; 256 << 10];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => partial.write(&buffer[..n])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(PullError::Network(format!("{url}: {error}"))),
        }
        progress.set(partial.bytes());
        progress.check()?;
    }
}

/// The URL of the next page in a `Link` header.
pub fn next_of(links: &str) -> Option<&str> {
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    Some(next.split_once('<')?.1.split_once('>')?.0)
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn host(url: &Uri) -> String {
    url.host().unwrap_or_default().to_owned()
}

fn client_fault(url: &Uri, error: ureq::Error) -> PullError {
    let text = format!("cannot fetch from {}: {error}", host(url));
    match error {
        ureq::Error::Io(error) if error.kind() == ErrorKind::PermissionDenied => PullError::Refused(text),
        ureq::Error::Io(_)
        | ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => PullError::Network(text),
        _ => PullError::Refused(text),
    }
}
