//! Streams of generations: what the choices yield becomes events as it arrives.

use std::collections::VecDeque;

use bytes::Bytes;
use serde::Serialize;

use super::error;
use super::types::usage::Usage;
use crate::http::choices::Choices;
use crate::http::error::ApiError;
use crate::http::sse::data;
use crate::http::stream::Frames;
use chat::Piece;
use serving::{EndReason, Output};

/// What a response's stream consists of, frame by frame.
pub trait Events: 'static {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes>;
    /// The frames of what the choice `index` yields.
    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes>;
    fn end(&mut self, usage: Usage) -> Vec<Bytes>;
    /// The last frames of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
}

/// An endpoint's chunks.
pub trait ChunkFormat: 'static {
    type Chunk: Serialize;
    /// The event that opens a choice, if the endpoint has one.
    fn first(&self, index: usize) -> Option<Self::Chunk>;
    /// `None` for pieces that the endpoint does not return.
    fn piece(&self, index: usize, piece: Piece) -> Option<Self::Chunk>;
    fn end(&self, index: usize, reason: EndReason) -> Self::Chunk;
    /// The last event, without choices.
    fn usage(&self, usage: Usage) -> Self::Chunk;
}

/// The stream of chat and text completions: chunks, and `[DONE]` unless it failed.
struct Chunks<F> {
    format: F,
    include_usage: bool,
}

impl<F: ChunkFormat> Events for Chunks<F> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        (0..num_choices).filter_map(|index| self.format.first(index)).map(|chunk| data(&chunk)).collect()
    }

    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes> {
        let chunk = match output {
            Output::Piece(piece) => self.format.piece(index, piece),
            Output::End(end) => Some(self.format.end(index, end.reason)),
        };
        chunk.iter().map(data).collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        let usage = self.include_usage.then(|| data(&self.format.usage(usage)));
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}

/// The choices as chunks.
pub fn chunks(choices: Choices, format: impl ChunkFormat, include_usage: bool) -> impl Frames {
    frames(choices, Chunks { format, include_usage })
}

/// Someone who sees what a stream consists of.
pub trait Watch: 'static {
    fn output(&mut self, index: usize, output: &Output);
    fn end(&mut self, usage: Usage);
}

struct Watched<F, W> {
    chunks: Chunks<F>,
    watch: Option<W>,
}

impl<F: ChunkFormat, W: Watch> Events for Watched<F, W> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        self.chunks.begin(num_choices)
    }

    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes> {
        if let Some(watch) = &mut self.watch {
            watch.output(index, &output);
        }
        self.chunks.output(index, output)
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        if let Some(watch) = &mut self.watch {
            watch.end(usage);
        }
        self.chunks.end(usage)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.chunks.fail(error)
    }
}

/// The choices as chunks, which `watch` sees too.
pub fn watched_chunks(choices: Choices, format: impl ChunkFormat, include_usage: bool, watch: Option<impl Watch>) -> impl Frames {
    frames(choices, Watched { chunks: Chunks { format, include_usage }, watch })
}

/// The choices as `events`.
pub fn frames(choices: Choices, mut events: impl Events) -> impl Frames {
    let ready = events.begin(choices.len()).into();
    Reader { choices, events, ready, has_ended: false }
}

/// The last frame of a stream of chunks that fails.
pub fn error_event(error: &ApiError) -> Bytes {
    data(&error::body(error))
}

/// Reads the choices and words what they yield. The choices live as long as the reader, so a draining server waits for the last frame.
struct Reader<E> {
    choices: Choices,
    events: E,
    /// Frames that are not yet handed out.
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

impl<E: Events> Frames for Reader<E> {
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
            let next = self.choices.next().await;
            self.has_ended = !matches!(next, Some(Ok(_)));
            self.ready = match next {
                Some(Ok((index, output))) => self.events.output(index, output),
                Some(Err(error)) => self.events.fail(&error),
                None => self.events.end(self.choices.usage().into()),
            }
            .into();
        }
    }
}
