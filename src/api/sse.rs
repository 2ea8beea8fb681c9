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
use super::error::ApiError;
use super::metrics;
use super::types::usage::Usage;
use crate::serving::{Text, TokenLogprob};

/// Events that wait for the client at most.
const BUFFERED_EVENTS: usize = 64;
/// A client that takes nothing for this long is cut off.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// What a response's stream consists of, frame by frame.
pub trait Events: 'static {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes>;
    fn part(&mut self, part: Part) -> Vec<Bytes>;
    fn end(&mut self, usage: Usage) -> Vec<Bytes>;
    /// The last frames of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
}

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

/// The stream of chat and text completions: chunks, and `[DONE]` where all went well.
struct Chunks<D> {
    dialect: D,
    include_usage: bool,
}

impl<D: Dialect> Events for Chunks<D> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        (0..num_choices).filter_map(|index| self.dialect.first(index)).map(|chunk| data(&chunk)).collect()
    }

    fn part(&mut self, part: Part) -> Vec<Bytes> {
        let chunk = match part {
            Part::Prompt(index, tokens) => self.dialect.prompt(index, tokens),
            Part::Text(index, text) => Some(self.dialect.text(index, text)),
            Part::Reasoning(index, text) => self.dialect.reasoning(index, text),
            Part::Call(index, number, name) => self.dialect.call(index, number, name),
            Part::Arguments(index, number, text) => self.dialect.arguments(index, number, text),
            Part::Finished(index, reason) => Some(self.dialect.finish(index, reason)),
        };
        chunk.iter().map(data).collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        let usage = self.include_usage.then(|| data(&self.dialect.usage(usage)));
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![data(&error.body())]
    }
}

/// `event: …`, `data: …` and a blank line.
pub fn named(name: &str, value: &impl Serialize) -> Bytes {
    [format!("event: {name}\n").as_bytes(), &data(value)].concat().into()
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

    async fn send_all(&self, frames: Vec<Bytes>) -> Result<(), Gone> {
        for frame in frames {
            self.send(Some(frame)).await?;
        }
        Ok(())
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

/// Streams the choices as chunks.
pub fn respond(choices: Choices, dialect: impl Dialect, include_usage: bool) -> HttpResponse {
    stream(choices, Chunks { dialect, include_usage })
}

/// Streams the choices. A task of its own reads them, so that a client that does not read is noticed.
pub fn stream(choices: Choices, events: impl Events) -> HttpResponse {
    let (queue, receiver) = mpsc::channel(BUFFERED_EVENTS);
    let out = Out { queue, patience: WRITE_TIMEOUT };
    rt::spawn(async move {
        if let Err(Gone::Stalled) = pump(choices, events, &out).await {
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

async fn pump(mut choices: Choices, mut events: impl Events, out: &Out) -> Result<(), Gone> {
    out.send_all(events.begin(choices.len())).await?;
    let keep_alive = choices.state().keep_alive;
    loop {
        let part = tokio::select! {
            // Also while the sequence waits or is in prefill.
            () = out.queue.closed() => return Err(Gone::Left),
            part = timeout(keep_alive, choices.next()) => part,
        };
        match part {
            Err(_) => out.send(Some(Bytes::from_static(b": ping\n\n"))).await?,
            Ok(Some(Ok(part))) => out.send_all(events.part(part)).await?,
            Ok(Some(Err(error))) => {
                out.send_all(events.fail(&error)).await?;
                return out.send(None).await;
            }
            Ok(None) => break,
        }
    }
    out.send_all(events.end(choices.usage())).await?;
    out.send(None).await
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[test]
    fn a_frame_is_one_line() {
        assert_eq!(data(&serde_json::json!({"text": "a\nb\r\n\n"})), "data: {\"text\":\"a\\nb\\r\\n\\n\"}\n\n");
        assert_eq!(named("x.y", &serde_json::json!([1])), "event: x.y\ndata: [1]\n\n");
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
