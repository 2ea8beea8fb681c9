//! A connection below HTTP. It bounds the time that each request head takes, and adds a body to the errors that the HTTP library answers by
//! itself. The library bounds only the first head's time, and its own errors have no body.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::Data;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::dialect::Dialects;
use super::error::{ApiError, Kind};
use super::tls::Stream;
use super::{access_log, metrics};

/// The time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionTimeouts {
    /// From the first byte of a head to its last one. For the first head, from the start of the connection.
    pub head: Duration,
    /// From a response to the next head.
    pub idle: Duration,
}

/// State that the middleware and the connection share.
pub struct ConnectionWatch {
    patience: ConnectionTimeouts,
    /// The number of requests that are being answered.
    busy: Cell<usize>,
    /// Whether bytes arrived while a request was being answered: the rest of its body, or the start of the next head.
    overlap: Cell<bool>,
    /// When the connection is closed unless a request begins first.
    deadline: Cell<Option<Instant>>,
    /// The number of requests so far.
    num_requests: Cell<usize>,
    /// Whether the next response is an HTTP/1.0 one whose head must say that the connection closes, which the library omits.
    says_close: Cell<bool>,
}

impl ConnectionWatch {
    fn new(patience: ConnectionTimeouts) -> Rc<Self> {
        let deadline = Cell::new(Some(Instant::now() + patience.head));
        let (busy, overlap, num_requests, says_close) = (Cell::new(0), Cell::new(false), Cell::new(0), Cell::new(false));
        Rc::new(Self { patience, busy, overlap, deadline, num_requests, says_close })
    }

    /// Records that a whole head has arrived. Its request is being answered until the returned value is dropped.
    pub fn begin(self: &Rc<Self>) -> ActiveRequest {
        self.busy.set(self.busy.get() + 1);
        self.num_requests.set(self.num_requests.get() + 1);
        self.overlap.set(false);
        self.deadline.set(None);
        ActiveRequest(self.clone())
    }

    /// Adds `connection: close` to the next response head, for a request of HTTP/1.0. Does nothing unless the connection has had one
    /// request only, since earlier responses may still wait to be written. HTTP/1.0 clients expect the connection to close anyway.
    pub fn say_close(&self) {
        self.says_close.set(self.num_requests.get() == 1);
    }

    fn received(&self) {
        if self.busy.get() > 0 {
            return self.overlap.set(true);
        }
        let head = Instant::now() + self.patience.head;
        self.deadline.set(Some(self.deadline.get().map_or(head, |earlier| earlier.min(head))));
    }
}

/// A request that is being answered, until dropped.
pub struct ActiveRequest(Rc<ConnectionWatch>);

impl ActiveRequest {
    pub fn watch(&self) -> Rc<ConnectionWatch> {
        self.0.clone()
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let watch = &self.0;
        watch.busy.set(watch.busy.get() - 1);
        // The library stops its idle timer at the first byte of a head, which may have arrived already.
        if watch.busy.get() == 0 && watch.overlap.get() {
            watch.deadline.set(Some(Instant::now() + watch.patience.idle));
        }
    }
}

pub struct Connection {
    stream: Stream,
    watch: Rc<ConnectionWatch>,
    timer: Pin<Box<Sleep>>,
    dialects: Data<Dialects>,
    /// The bytes to write in place of the library's.
    instead: Option<Replacement>,
    /// Whether part of a response waits for the client to read.
    stalled: bool,
}

struct Replacement {
    bytes: Vec<u8>,
    written: usize,
    /// The number of the library's bytes that are replaced.
    replaced: usize,
}

impl Connection {
    pub fn new(stream: Stream, patience: ConnectionTimeouts, dialects: Data<Dialects>) -> Self {
        let watch = ConnectionWatch::new(patience);
        let timer = Box::pin(sleep_until(Instant::now() + patience.head));
        Self { stream, watch, timer, dialects, instead: None, stalled: false }
    }

    pub fn watch(&self) -> &Rc<ConnectionWatch> {
        &self.watch
    }

    /// Whether the deadline has passed. If not, the task is woken when it does.
    fn is_late(&mut self, cx: &mut Context) -> bool {
        let Some(deadline) = self.watch.deadline.get() else { return false };
        if self.timer.deadline() != deadline {
            self.timer.as_mut().reset(deadline);
        }
        self.timer.as_mut().poll(cx).is_ready()
    }

    /// Returns the replacement for `bytes` or their beginning, if they need one.
    fn instead_of(&self, bytes: &[u8]) -> Option<Replacement> {
        let says_close = self.watch.says_close.take();
        let (bytes, replaced) = match bare_error(bytes) {
            Some(status) => (self.error_answer(status), bytes.len()),
            None if says_close => {
                let line = status_line(bytes)?;
                ([line, b"connection: close\r\n"].concat(), line.len())
            }
            None => return None,
        };
        Some(Replacement { bytes, written: 0, replaced })
    }

    /// Builds a complete error response for a head that could not be read.
    fn error_answer(&self, status: StatusCode) -> Vec<u8> {
        let (kind, message) = match status {
            StatusCode::REQUEST_TIMEOUT => {
                (Kind::Timeout, format!("the request's head did not arrive within {} s", self.watch.patience.head.as_secs()))
            }
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
                (Kind::HeadTooLarge, "the request's head has more than 96 headers or more than 128 KiB".into())
            }
            _ => (
                Kind::MalformedHead,
                "the request's head or the framing of its body is not valid HTTP/1.1, or HTTP/1.0 with a content-length".into(),
            ),
        };
        metrics::http().rejections.with_label_values(&[kind.code()]).inc();
        let body = self.dialects.default_dialect().error_body(&ApiError::new(kind, message), None).to_string();
        let (id, length) = (uuid::Uuid::new_v4().simple(), body.len());
        let peer = self.stream.peer_addr().map(|address| address.to_string()).unwrap_or_default();
        access_log::write_unreadable(&id.to_string(), kind, &peer);
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nx-request-id: {id}\r\n");
        format!("{head}connection: close\r\n\r\n{body}").into_bytes()
    }
}

/// Returns the status of a response that the library made itself: an error with neither a body nor the id that the middleware gives every
/// response.
fn bare_error(bytes: &[u8]) -> Option<StatusCode> {
    let head = std::str::from_utf8(bytes.strip_suffix(b"\r\n\r\n")?).ok()?.to_ascii_lowercase();
    let mut lines = head.split("\r\n");
    let line = lines.next()?;
    let line = line.strip_prefix("http/1.1 ").or_else(|| line.strip_prefix("http/1.0 "))?;
    let status = StatusCode::from_bytes(line.get(..3)?.as_bytes()).ok()?;
    let is_bare = status.is_client_error() && lines.clone().any(|line| line == "content-length: 0");
    (is_bare && lines.all(|line| !line.starts_with("x-request-id:") && !line.is_empty())).then_some(status)
}

/// Returns the status line of an HTTP/1.0 response, with its line break.
fn status_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    bytes.starts_with(b"HTTP/1.0 ").then_some(&bytes[..end])
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context, buffer: &mut ReadBuf) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            this.watch.received();
        }
        if polled.is_pending() && this.is_late(cx) {
            this.watch.deadline.set(None);
            if !this.stalled {
                // An idle client's send buffer is empty, so the response is written whole unless the client has left.
                let answer = this.error_answer(StatusCode::REQUEST_TIMEOUT);
                this.stream.write_now(cx, &answer);
            }
            // Reading no bytes means the end of the stream, and the library closes the connection.
            return Poll::Ready(Ok(()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() && !this.stalled {
            this.instead = this.instead_of(bytes);
        }
        let mut stream = Pin::new(&mut this.stream);
        let polled = match &mut this.instead {
            None => stream.poll_write(cx, bytes),
            Some(instead) => {
                while instead.written < instead.bytes.len() {
                    instead.written += ready!(stream.as_mut().poll_write(cx, &instead.bytes[instead.written..]))?;
                }
                Poll::Ready(Ok(instead.replaced))
            }
        };
        this.stalled = !matches!(&polled, Poll::Ready(Ok(written)) if *written == bytes.len());
        if polled.is_ready() {
            this.instead = None;
        }
        // A response that has just ended may have set a deadline, for which the task must be woken.
        let _ = this.is_late(cx);
        polled
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_the_library_are_bare() {
        let bare = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(bare_error(bare), Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        let old = b"HTTP/1.0 400 Bad Request\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        assert_eq!(bare_error(old), Some(StatusCode::BAD_REQUEST));
        for other in [
            &b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nx-request-id: a\r\n\r\n"[..],
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            b"\r\n\r\n",
            b"",
        ] {
            assert_eq!(bare_error(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn a_head_has_a_deadline_and_an_idle_connection_has_none_before_its_first_byte() {
        let patience = ConnectionTimeouts { head: Duration::from_secs(5), idle: Duration::from_secs(75) };
        let watch = ConnectionWatch::new(patience);
        let left = || watch.deadline.get().map(|deadline| (deadline - Instant::now()).as_secs_f64().round());
        let first = watch.deadline.get();
        assert_eq!(left(), Some(5.0), "the first head is due although nothing has arrived");
        std::thread::sleep(Duration::from_millis(5));
        watch.received();
        assert_eq!(watch.deadline.get(), first, "a byte does not extend the deadline");
        let busy = watch.begin();
        assert_eq!(left(), None);
        drop(busy);
        assert_eq!(left(), None, "the connection is idle");
        watch.received();
        assert_eq!(left(), Some(5.0));
        let (one, two) = (watch.begin(), watch.begin());
        watch.received();
        drop(one);
        assert_eq!(left(), None, "another request is still being answered");
        drop(two);
        assert_eq!(left(), Some(75.0), "what came may be the end of a body or the beginning of a head");
        watch.received();
        assert_eq!(left(), Some(5.0));
    }
}
