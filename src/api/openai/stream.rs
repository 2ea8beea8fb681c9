//! Streams of chat and text completions: an event per piece of a choice, and `[DONE]` at the end.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;

use super::error;
use super::types::common::StreamOptions;
use super::types::usage::Usage;
use chat::Piece;
use http::client_stream::ClientStream;
use http::error::ApiError;
use http::response_frames::{StreamFormat, frames};
use http::sse::data;
use http::stream::Frames;
use serving::{End, Ledger, PromptProgress};

/// Makes the events of an endpoint's stream.
pub trait EventFormat: 'static {
    type Event: Serialize;
    /// Returns the event that opens a choice, if the endpoint has one.
    fn first(&self, index: usize) -> Option<Self::Event>;
    /// Returns the event for a piece. `None` if the endpoint does not return such pieces.
    fn piece(&mut self, index: usize, piece: Piece) -> Option<Self::Event>;
    fn end(&mut self, index: usize, end: End) -> Self::Event;
    /// Adds the optional parts that the request asks for. `ids`: the token ids since the choice's last event. `None` for its first event.
    fn complete(&mut self, index: usize, event: &mut Self::Event, ids: Option<Vec<u32>>, ledger: &Ledger);
    /// Returns the last event, which has no choices.
    fn usage(&self, usage: Usage) -> Self::Event;
    /// Returns the event that reports the prompt's progress, if the endpoint has one.
    fn progress(&self, _progress: PromptProgress) -> Option<Self::Event> {
        None
    }
    /// Receives the token counts once every choice has ended.
    fn close(&mut self, _usage: Usage) {}
}

struct CompletionStream<F> {
    format: F,
    options: StreamOptions,
    ledger: Ledger,
    /// The token ids since each choice's last event. Empty unless the request asks for them.
    ids: BTreeMap<usize, Vec<u32>>,
}

impl<F: EventFormat> CompletionStream<F> {
    fn frame(&mut self, index: usize, mut event: F::Event) -> Bytes {
        self.format.complete(index, &mut event, Some(self.ids.remove(&index).unwrap_or_default()), &self.ledger);
        data(&event)
    }
}

impl<F: EventFormat> StreamFormat for CompletionStream<F> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        let first = |index| {
            let mut event = self.format.first(index)?;
            self.format.complete(index, &mut event, None, &self.ledger);
            Some(data(&event))
        };
        (0..num_choices).filter_map(first).collect()
    }

    fn ids(&mut self, index: usize, ids: Vec<u32>) {
        if !ids.is_empty() {
            // If the previous output had no event, its ids are still here.
            self.ids.entry(index).or_default().extend(ids);
        }
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Bytes> {
        let event = self.format.piece(index, piece);
        event.map(|event| self.frame(index, event)).into_iter().collect()
    }

    async fn end(&mut self, index: usize, end: End) -> Vec<Bytes> {
        let event = self.format.end(index, end);
        vec![self.frame(index, event)]
    }

    fn close(&mut self) -> Vec<Bytes> {
        let usage = self.ledger.counts().into();
        self.format.close(usage);
        let usage = self.options.include_usage.then(|| data(&self.format.usage(usage)));
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn progress(&mut self, progress: PromptProgress) -> Option<Bytes> {
        self.format.progress(progress).filter(|_| self.options.include_progress).map(|event| data(&event))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}

/// Streams a response as events.
pub fn events(response: ClientStream, format: impl EventFormat, options: StreamOptions) -> impl Frames {
    let ledger = response.ledger().clone();
    frames(response, CompletionStream { format, options, ledger, ids: BTreeMap::new() })
}

/// Makes the last frame of a stream of events that fails.
pub fn error_event(error: &ApiError) -> Bytes {
    data(&error::body(error))
}
