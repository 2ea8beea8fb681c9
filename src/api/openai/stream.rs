//! Streams of generations, which convert the choices' outputs to events as they arrive.

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

/// Makes the frames of a response's stream.
pub trait Events: 'static {
    fn begin(&mut self, num_choices: usize) -> Vec<Bytes>;
    /// Receives the facts that are known before the next output of the choice `index`.
    fn note(&mut self, _index: usize, _note: EventNote) {}
    /// Returns the frames for an output of the choice `index`.
    fn output(&mut self, index: usize, output: Output) -> Vec<Bytes>;
    fn end(&mut self, usage: Usage) -> Vec<Bytes>;
    /// Returns the frames that report the prompt's progress. `None` if the stream does not report it.
    fn progress(&mut self, _progress: PromptProgress) -> Option<Vec<Bytes>> {
        None
    }
    /// Returns the last frames of a stream that fails.
    fn fail(&mut self, error: &ApiError) -> Vec<Bytes>;
}

/// Makes the events of an endpoint's stream.
pub trait EventFormat: 'static {
    type Event: Serialize;
    /// Returns the event that opens a choice, if the endpoint has one.
    fn first(&self, index: usize) -> Option<Self::Event>;
    /// Returns the event for a piece. `None` if the endpoint does not return such pieces.
    fn piece(&mut self, index: usize, piece: Piece) -> Option<Self::Event>;
    fn end(&self, index: usize, end: End) -> Self::Event;
    /// Adds the optional parts that the request asks for. `note` is `None` for the event that opens a choice.
    fn complete(&mut self, index: usize, event: &mut Self::Event, note: Option<EventNote>);
    /// Returns the last event, which has no choices.
    fn usage(&self, usage: Usage) -> Self::Event;
    /// Returns the event that reports the prompt's progress, if the endpoint has one.
    fn progress(&self, _progress: PromptProgress) -> Option<Self::Event> {
        None
    }
}

/// The time between two events about the prompt's progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// The stream of a chat or text completion: events, followed by `[DONE]` unless it failed.
struct CompletionStream<F> {
    format: F,
    options: StreamOptions,
    /// The tokens since each choice's last event, and the counts so far.
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
            // The previous output had no event, so its ids are still here.
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

/// Streams the choices as events.
pub fn events(choices: Choices, format: impl EventFormat, options: StreamOptions) -> impl Frames {
    frames(choices, CompletionStream { format, options, notes: BTreeMap::new() })
}

/// Observes the outputs that a stream is made of.
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

/// Streams the choices as events, and passes the outputs to `watch` as well.
pub fn observed_events(
    choices: Choices,
    format: impl EventFormat,
    options: StreamOptions,
    watch: Option<impl OutputObserver>,
) -> impl Frames {
    frames(choices, ObservedStream { inner: CompletionStream { format, options, notes: BTreeMap::new() }, watch })
}

/// Streams the choices as the frames of `events`.
pub fn frames(choices: Choices, mut events: impl Events) -> impl Frames {
    let ready = events.begin(choices.len()).into();
    ChoiceReader { choices, events, ready, told: None, has_ended: false }
}

/// Makes the last frame of a stream of events that fails.
pub fn error_event(error: &ApiError) -> Bytes {
    data(&error::body(error))
}

/// Reads the choices and makes frames of their outputs. The choices live as long as the reader, so a draining server waits for the last
/// frame.
struct ChoiceReader<E> {
    choices: Choices,
    events: E,
    /// Frames that have not been returned yet.
    ready: VecDeque<Bytes>,
    /// The progress that was reported last.
    told: Option<PromptProgress>,
    has_ended: bool,
}

impl<E: Events> ChoiceReader<E> {
    /// Returns the next output of the choices. `None` if the prompt's progress is to be reported first.
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
