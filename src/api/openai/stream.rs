//! Streams of generations: what the choices yield becomes events as it arrives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::error;
use super::extras::Note;
use super::types::common::StreamOptions;
use super::types::usage::Usage;
use chat::Piece;
use http::choices::{Choices, PromptProgress};
use http::error::ApiError;
use http::sse::data;
use http::stream::Frames;
use serving::{End, Output};

/// What a response's stream consists of, frame by frame.
pub trait Events: 'static {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes>;
    /// What is known of the choice `index` before its next output.
    fn note(&mut self, _index: usize, _note: Note) {}
    /// The frames of what the choice `index` yields.
    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes>;
    fn end(&mut self, usage: Usage) -> Vec<Bytes>;
    /// The frames that tell how far the prompt is. None: this stream does not tell.
    fn progress(&mut self, _progress: PromptProgress) -> Option<Vec<Bytes>> {
        None
    }
    /// The last frames of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
}

/// An endpoint's chunks.
pub trait ChunkFormat: 'static {
    type Chunk: Serialize;
    /// The event that opens a choice, if the endpoint has one.
    fn first(&self, index: usize) -> Option<Self::Chunk>;
    /// `None` for pieces that the endpoint does not return.
    fn piece(&mut self, index: usize, piece: Piece) -> Option<Self::Chunk>;
    fn end(&self, index: usize, end: End) -> Self::Chunk;
    /// Adds what the request asks for beside the answer. `note`: none for the event that opens a choice.
    fn complete(&mut self, index: usize, chunk: &mut Self::Chunk, note: Option<Note>);
    /// The last event, without choices.
    fn usage(&self, usage: Usage) -> Self::Chunk;
    /// The event that tells how far the prompt is, if the endpoint has one.
    fn progress(&self, _progress: PromptProgress) -> Option<Self::Chunk> {
        None
    }
}

/// The time between two events about the prompt.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// The stream of chat and text completions: chunks, and `[DONE]` unless it failed.
struct Chunks<F> {
    format: F,
    options: StreamOptions,
    /// Tokens that came since each choice's last chunk, and the counts.
    notes: BTreeMap<usize, Note>,
}

impl<F: ChunkFormat> Events for Chunks<F> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        let first = |index| {
            let mut chunk = self.format.first(index)?;
            self.format.complete(index, &mut chunk, None);
            Some(data(&chunk))
        };
        (0..num_choices).filter_map(first).collect()
    }

    fn note(&mut self, index: usize, note: Note) {
        match self.notes.entry(index) {
            Entry::Vacant(entry) => drop(entry.insert(note)),
            // The last output had no chunk.
            Entry::Occupied(mut entry) => {
                let kept = entry.get_mut();
                kept.ids.extend(note.ids);
                kept.usage = note.usage;
            }
        }
    }

    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes> {
        let chunk = match output {
            Output::Piece(piece) => self.format.piece(index, piece),
            Output::End(end) => Some(self.format.end(index, end)),
        };
        let complete = |mut chunk: F::Chunk| {
            self.format.complete(index, &mut chunk, self.notes.remove(&index));
            data(&chunk)
        };
        chunk.map(complete).into_iter().collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        let usage = self.options.include_usage.then(|| data(&self.format.usage(usage)));
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn progress(&mut self, progress: PromptProgress) -> Option<Vec<Bytes>> {
        let chunk = self.format.progress(progress).filter(|_| self.options.include_progress)?;
        Some(vec![data(&chunk)])
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}

/// The choices as chunks.
pub fn chunks(choices: Choices, format: impl ChunkFormat, options: StreamOptions) -> impl Frames {
    frames(choices, Chunks { format, options, notes: BTreeMap::new() })
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

    fn note(&mut self, index: usize, note: Note) {
        self.chunks.note(index, note);
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

    fn progress(&mut self, progress: PromptProgress) -> Option<Vec<Bytes>> {
        self.chunks.progress(progress)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.chunks.fail(error)
    }
}

/// The choices as chunks, which `watch` sees too.
pub fn watched_chunks(choices: Choices, format: impl ChunkFormat, options: StreamOptions, watch: Option<impl Watch>) -> impl Frames {
    frames(choices, Watched { chunks: Chunks { format, options, notes: BTreeMap::new() }, watch })
}

/// The choices as `events`.
pub fn frames(choices: Choices, mut events: impl Events) -> impl Frames {
    let ready = events.begin(choices.len()).into();
    Reader { choices, events, ready, told: None, has_ended: false }
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
    /// What the stream has said about the prompt.
    told: Option<PromptProgress>,
    has_ended: bool,
}

impl<E: Events> Reader<E> {
    /// What the choices yield next. None: something is to be said about the prompt first.
    async fn next_output(&mut self) -> Option<Option<Result<(usize, Output), ApiError>>> {
        while let Some(progress) = self.choices.prompt_progress() {
            if self.told != Some(progress) {
                let Some(frames) = self.events.progress(progress) else { break };
                self.told = Some(progress);
                self.ready = frames.into();
                return None;
            }
            if let Ok(next) = tokio::time::timeout(PROGRESS_EVERY, self.choices.next()).await {
                return Some(next);
            }
        }
        Some(self.choices.next().await)
    }
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
            let Some(next) = self.next_output().await else { continue };
            self.has_ended = !matches!(next, Some(Ok(_)));
            self.ready = match next {
                Some(Ok((index, output))) => {
                    let note = Note { ids: self.choices.take_ids(index), usage: self.choices.usage_so_far().into() };
                    self.events.note(index, note);
                    self.events.output(index, output)
                }
                Some(Err(error)) => self.events.fail(&error),
                None => self.events.end(self.choices.usage().into()),
            }
            .into();
        }
    }
}
