//! The stream of an answer.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;

use super::draft::Draft;
use super::error;
use super::types::event::MessagesEvent;
use http::choices::Choices;
use http::sse;
use http::stream::Frames;

/// Reads the generation and words what it yields. It begins with the first piece, when it is known what the cache held, or with the first
/// silence.
pub struct Stream {
    choices: Choices,
    draft: Draft,
    /// The request's id.
    id: String,
    has_begun: Cell<bool>,
    /// Frames that are not yet handed out.
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

fn frame(event: &MessagesEvent) -> Bytes {
    sse::named(event.name(), event)
}

impl Stream {
    pub fn new(choices: Choices, draft: Draft, id: String) -> Self {
        Self { choices, draft, id, has_begun: Cell::new(false), ready: VecDeque::new(), has_ended: false }
    }

    /// The first event, unless it was sent.
    fn begin(&self) -> Option<Bytes> {
        (!self.has_begun.replace(true)).then(|| frame(&self.draft.start(self.choices.begun())))
    }
}

impl Frames for Stream {
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
