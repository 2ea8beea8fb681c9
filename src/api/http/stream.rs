//! Streamed responses. A task sends the frames, so the server notices a client that leaves or does not read.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpResponse, rt};
use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::metrics;

/// The most frames that wait for the client.
const BUFFERED_FRAMES: usize = 64;
/// The time without reading after which a client is cut off.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The stream format: its content type and its keep-alive frame.
#[derive(Clone, Copy, Debug)]
pub struct Framing {
    pub content_type: &'static str,
    /// The frame that shows a waiting client that the server is alive. `None` if the format has no such frame.
    pub keep_alive: Option<&'static [u8]>,
}

/// The frames of a response, in a dialect's words.
pub trait Frames: 'static {
    /// Returns the next frames, at least one, or `None` after the last ones. Cancel safe: a dropped future loses no frame.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Bytes>>>;
    /// Reports that the stream is cut because the client does not read.
    fn stall(&self) {}
    /// Returns the frame to send after a silence, in place of the format's keep-alive frame.
    fn beat(&mut self) -> Option<Bytes> {
        None
    }
}

/// Streams `frames` to the client. After each silence of `keep_alive`, sends the keep-alive frame.
pub fn respond(framing: Framing, frames: impl Frames, keep_alive: Duration) -> HttpResponse {
    let (queue, receiver) = mpsc::channel(BUFFERED_FRAMES);
    let out = FrameSender { queue, patience: WRITE_TIMEOUT };
    rt::spawn(async move {
        let beat = framing.keep_alive.map(|frame| (keep_alive, frame));
        if let Err(Disconnect::Stalled) = pump(frames, beat, &out).await {
            metrics::http().stalled.inc();
        }
    });
    HttpResponse::Ok()
        .content_type(framing.content_type)
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // Without this header, proxies such as nginx buffer the frames.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(Body(receiver))
}

/// Sends every frame, and a keep-alive frame from `beat` after each silence of its duration.
async fn pump(mut frames: impl Frames, beat: Option<(Duration, &'static [u8])>, out: &FrameSender) -> Result<(), Disconnect> {
    loop {
        let next = async {
            let Some((silence, frame)) = beat else { return frames.next().await };
            let next = timeout(silence, frames.next()).await;
            next.unwrap_or_else(|_| Some(vec![frames.beat().unwrap_or(Bytes::from_static(frame))]))
        };
        let next = tokio::select! {
            // This branch also detects a client that leaves while its request is queued or in prefill.
            () = out.queue.closed() => return Err(Disconnect::Left),
            next = next => next,
        };
        let is_end = next.is_none();
        if let Err(gone) = out.send_all(next).await {
            if gone == Disconnect::Stalled {
                frames.stall();
            }
            return Err(gone);
        }
        if is_end {
            return Ok(());
        }
    }
}

#[derive(Debug, PartialEq)]
enum Disconnect {
    /// The client has closed the connection.
    Left,
    /// The client does not read.
    Stalled,
}

/// The sending end of a response body.
struct FrameSender {
    queue: mpsc::Sender<Option<Bytes>>,
    patience: Duration,
}

impl FrameSender {
    /// Sends frames, or the end of the stream.
    async fn send_all(&self, frames: Option<Vec<Bytes>>) -> Result<(), Disconnect> {
        let Some(frames) = frames else { return self.send(None).await };
        for frame in frames {
            self.send(Some(frame)).await?;
        }
        Ok(())
    }

    /// Sends a frame. `None` marks the complete end of the stream.
    async fn send(&self, frame: Option<Bytes>) -> Result<(), Disconnect> {
        match timeout(self.patience, self.queue.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Disconnect::Left),
            Err(_) => Err(Disconnect::Stalled),
        }
    }
}

/// The receiving end of a response body. It fails if the sender is dropped without the end mark, so a cut stream does not look complete.
struct Body(mpsc::Receiver<Option<Bytes>>);

impl Stream for Body {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|item| match item {
            Some(Some(frame)) => Some(Ok(frame)),
            Some(None) => None,
            None => Some(Err(std::io::Error::other("the stream was cut"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    /// Test double: waits for `delay`, then yields its frames.
    struct Late {
        delay: Option<Duration>,
        frames: Vec<&'static [u8]>,
    }

    impl Frames for Late {
        async fn next(&mut self) -> Option<Vec<Bytes>> {
            if let Some(delay) = self.delay {
                rt::time::sleep(delay).await;
                self.delay = None;
            }
            self.frames.pop().map(|frame| vec![Bytes::from_static(frame)])
        }
    }

    fn out(capacity: usize) -> (FrameSender, mpsc::Receiver<Option<Bytes>>) {
        let (queue, receiver) = mpsc::channel(capacity);
        (FrameSender { queue, patience: Duration::from_millis(20) }, receiver)
    }

    #[actix_web::test]
    async fn a_cut_body_is_an_error() {
        let (queue, receiver) = mpsc::channel(4);
        let mut body = Body(receiver);
        queue.send(Some(Bytes::from_static(b"x"))).await.unwrap();
        drop(queue);
        assert_eq!(body.next().await.unwrap().unwrap(), "x");
        assert!(body.next().await.unwrap().is_err());
    }

    #[actix_web::test]
    async fn a_client_that_does_not_read_is_stalled_and_one_that_closes_has_left() {
        let (out, receiver) = out(1);
        assert_eq!(out.send(Some(Bytes::new())).await, Ok(()));
        assert_eq!(out.send(Some(Bytes::new())).await, Err(Disconnect::Stalled));
        drop(receiver);
        assert_eq!(out.send(Some(Bytes::new())).await, Err(Disconnect::Left));
    }

    #[actix_web::test]
    async fn silence_is_filled_with_keep_alive_frames_and_the_end_is_marked() {
        let (out, mut receiver) = out(64);
        let frames = Late { delay: None, frames: vec![b"b", b"a"] };
        pump(frames, Some((Duration::from_secs(60), b"beat")), &out).await.unwrap();
        let sent: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
        assert_eq!(sent, [Some(Bytes::from_static(b"a")), Some(Bytes::from_static(b"b")), None]);

        let silent = Late { delay: Some(Duration::from_secs(60)), frames: Vec::new() };
        let beats = async {
            for _ in 0..3 {
                assert_eq!(receiver.recv().await, Some(Some(Bytes::from_static(b"beat"))));
            }
            drop(receiver);
        };
        let (result, ()) = futures_util::future::join(pump(silent, Some((Duration::from_millis(1), b"beat")), &out), beats).await;
        assert_eq!(result, Err(Disconnect::Left), "a client that leaves while nothing is sent is noticed");
    }
}
