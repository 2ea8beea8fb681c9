//! Streams of generations: what the choices yield becomes events as it arrives.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::error;
use super::response_options::EventNote;
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
    fn note(&mut self, _index: usize, _note: EventNote) {}
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

/// The events of an endpoint's stream.
pub trait EventFormat: 'static {
    type Event: Serialize;
    /// The event that opens a choice, if the endpoint has one.
    fn first(&self, index: usize) -> Option<Self::Event>;
    /// `None` for pieces that the endpoint does not return.
    fn piece(&mut self, index: usize, piece: Piece) -> Option<Self::Event>;
    fn end(&self, index: usize, end: End) -> Self::Event;
    /// Adds what the request asks for beside the answer. `note`: none for the event that opens a choice.
    fn complete(&mut self, index: usize, event: &mut Self::Event, note: Option<EventNote>);
    /// The last event, without choices.
    fn usage(&self, usage: Usage) -> Self::Event;
    /// The event that tells how far the prompt is, if the endpoint has one.
    fn progress(&self, _progress: PromptProgress) -> Option<Self::Event> {
        None
    }
}

/// The time between two events about the prompt.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// The stream of chat and text completions: events, and `[DONE]` unless it failed.
struct CompletionStream<F> {
    format: F,
    options: StreamOptions,
    /// Tokens that came since each choice's last event, and the counts.
    notes: BTreeMap<usize, EventNote>,
}

impl<F: EventFormat> Events for CompletionStream<F> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        let first = |index| {
            let mut event = self.format.first(index)?;
            self.format.complete(index, &mut event, None);
            Some(data(&event))
        };
        (0..num_choices).filter_map(first).collect()
    }

    fn note(&mut self, index: usize, note: EventNote) {
        match self.notes.entry(index) {
            Entry::Vacant(entry) => drop(entry.insert(note)),
            // The last output had no event.
            Entry::Occupied(mut entry) => {
                let kept = entry.get_mut();
                kept.ids.extend(note.ids);
                kept.usage = note.usage;
            }
        }
    }

    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes> {
        let event = match output {
            Output::Piece(piece) => self.format.piece(index, piece),
            Output::End(end) => Some(self.format.end(index, end)),
        };
        let complete = |mut event: F::Event| {
            self.format.complete(index, &mut event, self.notes.remove(&index));
            data(&event)
        };
        event.map(complete).into_iter().collect()
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        let usage = self.options.include_usage.then(|| data(&self.format.usage(usage)));
        usage.into_iter().chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect()
    }

    fn progress(&mut self, progress: PromptProgress) -> Option<Vec<Bytes>> {
        let event = self.format.progress(progress).filter(|_| self.options.include_progress)?;
        Some(vec![data(&event)])
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        vec![error_event(error)]
    }
}

/// The choices as events.
pub fn events(choices: Choices, format: impl EventFormat, options: StreamOptions) -> impl Frames {
    frames(choices, CompletionStream { format, options, notes: BTreeMap::new() })
}

/// Someone who sees what a stream consists of.
pub trait OutputObserver: 'static {
    fn output(&mut self, index: usize, output: &Output);
    fn end(&mut self, usage: Usage);
}

struct ObservedStream<F, W> {
    inner: CompletionStream<F>,
    watch: Option<W>,
}

impl<F: EventFormat, W: OutputObserver> Events for ObservedStream<F, W> {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes> {
        self.inner.begin(num_choices)
    }

    fn note(&mut self, index: usize, note: EventNote) {
        self.inner.note(index, note);
    }

    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes> {
        if let Some(watch) = &mut self.watch {
            watch.output(index, &output);
        }
        self.inner.output(index, output)
    }

    fn end(&mut self, usage: Usage) -> Vec<Bytes> {
        if let Some(watch) = &mut self.watch {
            watch.end(usage);
        }
        self.inner.end(usage)
    }

    fn progress(&mut self, progress: PromptProgress) -> Option<Vec<Bytes>> {
        self.inner.progress(progress)
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Bytes> {
        self.inner.fail(error)
    }
}

/// The choices as events, which `watch` sees too.
pub fn observed_events(
    choices: Choices,
    format: impl EventFormat,
    options: StreamOptions,
    watch: Option<impl OutputObserver>,
) -> impl Frames {
    frames(choices, ObservedStream { inner: CompletionStream { format, options, notes: BTreeMap::new() }, watch })
}

/// The choices as `events`.
pub fn frames(choices: Choices, mut events: impl Events) -> impl Frames {
    let ready = events.begin(choices.len()).into();
    ChoiceReader { choices, events, ready, told: None, has_ended: false }
}

/// The last frame of a stream of events that fails.
pub fn error_event(error: &ApiError) -> Bytes {
    data(&error::body(error))
}

/// Reads the choices and words what they yield. The choices live as long as the reader, so a draining server waits for the last frame.
struct ChoiceReader<E> {
    choices: Choices,
    events: E,
    /// Frames that are not yet handed out.
    ready: VecDeque<Bytes>,
    /// What the stream has said about the prompt.
    told: Option<PromptProgress>,
    has_ended: bool,
}

impl<E: Events> ChoiceReader<E> {
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

impl<E: Events> Frames for ChoiceReader<E> {
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
                    let note = EventNote { ids: self.choices.take_ids(index), usage: self.choices.usage_so_far().into() };
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
