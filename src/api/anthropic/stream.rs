//! Streamed answers.

use bytes::Bytes;

use super::error;
use super::message_builder::MessageBuilder;
use super::types::event::MessagesEvent;
use chat::Piece;
use http::error::ApiError;
use http::response_frames::StreamFormat;
use http::sse;
use serving::{End, Ledger};

/// The format of a message's stream. The first event is sent with the first piece, when the number of cached tokens is known, or after the
/// first silence.
pub struct MessageEvents {
    draft: MessageBuilder,
    ledger: Ledger,
    /// The request's id.
    id: String,
    has_begun: bool,
}

fn frame(event: &MessagesEvent) -> Bytes {
    sse::named(event.name(), event)
}

impl MessageEvents {
    pub fn new(draft: MessageBuilder, ledger: Ledger, id: String) -> Self {
        Self { draft, ledger, id, has_begun: false }
    }

    /// Returns the frames of events, with that of the first event before them unless it was sent.
    fn frames(&mut self, events: &[MessagesEvent]) -> Vec<Bytes> {
        let begins = !events.is_empty() && !std::mem::replace(&mut self.has_begun, true);
        let first = begins.then(|| frame(&self.draft.start(self.ledger.counts())));
        first.into_iter().chain(events.iter().map(frame)).collect()
    }
}

impl StreamFormat for MessageEvents {
    fn piece(&mut self, _choice: usize, piece: Piece) -> Vec<Bytes> {
        let events = self.draft.piece(piece);
        self.frames(&events)
    }

    async fn end(&mut self, _choice: usize, end: End) -> Vec<Bytes> {
        let events = self.draft.end(end, self.ledger.counts());
        self.frames(&events)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error::event(error, Some(&self.id))]
    }

    fn beat(&mut self) -> Option<Bytes> {
        Some(self.frames(&[MessagesEvent::Ping]).concat().into())
    }
}
