//! Streamed answers.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;

use super::error;
use super::message_builder::MessageBuilder;
use super::types::event::MessagesEvent;
use http::choices::Choices;
use http::sse;
use http::stream::Frames;

/// Streams a generation as events. The first event is sent with the first piece, when the number of cached tokens is known, or after the
/// first silence.
pub struct MessageStream {
    choices: Choices,
    draft: MessageBuilder,
    /// The request's id.
    id: String,
    has_begun: Cell<bool>,
    /// Frames that have not been returned yet.
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

fn frame(event: &MessagesEvent) -> Bytes {
    sse::named(event.name(), event)
}

impl MessageStream {
    pub fn new(choices: Choices, draft: MessageBuilder, id: String) -> Self {
        Self { choices, draft, id, has_begun: Cell::new(false), ready: VecDeque::new(), has_ended: false }
    }

    /// Returns the first event, unless it was sent.
    fn begin(&self) -> Option<Bytes> {
        (!self.has_begun.replace(true)).then(|| frame(&self.draft.start(self.choices.begun())))
    }
}

impl Frames for MessageStream {
    fn stall(&self) {
        self.choices.stall();
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.has_ended {
                return None;
            }
            match self.choices.next().await {
                Some(Ok((_, output))) => {
                    let events = self.draft.take(output);
                    let first = if events.is_empty() { None } else { self.begin() };
                    self.ready.extend(first.into_iter().chain(events.iter().map(frame)));
                }
                Some(Err(error)) => {
                    self.has_ended = true;
                    self.ready.push_back(error::event(&error, Some(&self.id)));
                }
                None => self.has_ended = true,
            }
        }
    }

    fn beat(&self) -> Option<Bytes> {
        let frames: Vec<Bytes> = self.begin().into_iter().chain([frame(&MessagesEvent::Ping)]).collect();
        Some(frames.concat().into())
    }
}
