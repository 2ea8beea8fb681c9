//! Server-sent events: framing, keep-alive comments, and a bound on what a slow client makes us hold.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::http::header;
use actix_web::{HttpResponse, rt};
use bytes::Bytes;
use futures_util::Stream;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::choices::{Choices, Part};
use super::metrics;
use super::types::usage::Usage;
use crate::serving::{Text, TokenLogprob};

/// Events that wait for the client at most.
const BUFFERED_EVENTS: usize = 64;
/// A client that takes nothing for this long is cut off.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How an endpoint words its events.
pub trait Dialect: 'static {
    type Chunk: Serialize;
    /// The first event of a choice, if it has one of its own.
    fn first(&self, index: usize) -> Option<Self::Chunk>;
    /// The prompt's tokens, where the endpoint tells of them.
    fn prompt(&self, _index: usize, _tokens: Vec<TokenLogprob>) -> Option<Self::Chunk> {
        None
    }
    fn text(&self, index: usize, text: Text) -> Self::Chunk;
    /// Reasoning and calls, where the endpoint tells them from text.
    fn reasoning(&self, _index: usize, _text: String) -> Option<Self::Chunk> {
        None
    }
    fn call(&self, _index: usize, _number: usize, _name: String) -> Option<Self::Chunk> {
        None
    }
    fn arguments(&self, _index: usize, _number: usize, _text: String) -> Option<Self::Chunk> {
        None
    }
    fn finish(&self, index: usize, reason: &'static str) -> Self::Chunk;
    /// The last event, without choices.
    fn usage(&self, usage: Usage) -> Self::Chunk;
}

/// `data: …` and a blank line; JSON has no line breaks of its own.
fn data(value: &impl Serialize) -> Bytes {
    let mut frame = b"data: ".to_vec();
    // Our own types serialise: maps have string keys.
    serde_json::to_writer(&mut frame, value).expect("a chunk is JSON");
    frame.extend_from_slice(b"\n\n");
    frame.into()
}

enum Gone {
    /// The client has left.
    Left,
    /// It takes nothing.
    Stalled,
}

/// The pump's end of a response body.
struct Out {
    queue: mpsc::Sender<Option<Bytes>>,
    patience: Duration,
}

impl Out {
    async fn send(&self, frame: Option<Bytes>) -> Result<(), Gone> {
        match timeout(self.patience, self.queue.send(frame)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Gone::Left),
            Err(_) => Err(Gone::Stalled),
        }
    }
}

/// The client's end: it fails if the pump ends without saying so, so that a cut stream does not pass for a complete one.
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

/// Streams the choices. A task of its own reads them, so that a client that does not read is noticed.
pub fn respond(choices: Choices, dialect: impl Dialect, include_usage: bool) -> HttpResponse {
    let (queue, receiver) = mpsc::channel(BUFFERED_EVENTS);
    let out = Out { queue, patience: WRITE_TIMEOUT };
    rt::spawn(async move {
        if let Err(Gone::Stalled) = pump(choices, dialect, include_usage, &out).await {
            metrics::http().stalled.inc();
        }
    });
    HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // Proxies such as nginx hold events back otherwise.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(Body(receiver))
}

fn word<D: Dialect>(dialect: &D, part: Part) -> Option<D::Chunk> {
    match part {
        Part::Prompt(index, tokens) => dialect.prompt(index, tokens),
        Part::Text(index, text) => Some(dialect.text(index, text)),
        Part::Reasoning(index, text) => dialect.reasoning(index, text),
        Part::Call(index, number, name) => dialect.call(index, number, name),
        Part::Arguments(index, number, text) => dialect.arguments(index, number, text),
        Part::Finished(index, reason) => Some(dialect.finish(index, reason)),
    }
}

async fn pump<D: Dialect>(mut choices: Choices, dialect: D, include_usage: bool, out: &Out) -> Result<(), Gone> {
    for index in 0..choices.len() {
        if let Some(chunk) = dialect.first(index) {
            out.send(Some(data(&chunk))).await?;
        }
    }
    let keep_alive = choices.state().keep_alive;
    loop {
        let part = tokio::select! {
            // Also while the sequence waits or is in prefill.
            () = out.queue.closed() => return Err(Gone::Left),
            part = timeout(keep_alive, choices.next()) => part,
        };
        let frame = match part {
            Err(_) => Bytes::from_static(b": ping\n\n"),
            Ok(Some(Ok(part))) => match word(&dialect, part) {
                Some(chunk) => data(&chunk),
                None => continue,
            },
            Ok(Some(Err(error))) => {
                out.send(Some(data(&error.body()))).await?;
                return out.send(None).await;
            }
            Ok(None) => break,
        };
        out.send(Some(frame)).await?;
    }
    if include_usage {
        out.send(Some(data(&dialect.usage(choices.usage())))).await?;
    }
    out.send(Some(Bytes::from_static(b"data: [DONE]\n\n"))).await?;
    out.send(None).await
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[test]
    fn a_frame_is_one_line() {
        assert_eq!(data(&serde_json::json!({"text": "a\nb\r\n\n"})), "data: {\"text\":\"a\\nb\\r\\n\\n\"}\n\n");
    }

    #[actix_web::test]
    async fn a_body_that_was_cut_is_an_error() {
        let (queue, receiver) = mpsc::channel(4);
        let mut body = Body(receiver);
        queue.send(Some(Bytes::from_static(b"x"))).await.unwrap();
        drop(queue);
        assert_eq!(body.next().await.unwrap().unwrap(), "x");
        assert!(body.next().await.unwrap().is_err());
    }

    #[actix_web::test]
    async fn a_client_that_does_not_read_is_noticed() {
        let (queue, receiver) = mpsc::channel(1);
        let out = Out { queue, patience: Duration::from_millis(20) };
        assert!(out.send(Some(Bytes::new())).await.is_ok());
        assert!(matches!(out.send(Some(Bytes::new())).await, Err(Gone::Stalled)));
        drop(receiver);
        assert!(matches!(out.send(Some(Bytes::new())).await, Err(Gone::Left)));
    }
}
