//! From a validated request to a stream of text, and back.

mod detokenizer;
mod request;

use std::sync::Arc;

pub use detokenizer::{Detokenizer, Piece};
pub use request::{Budget, Options, Prompt, RequestError, SamplingParams, ValidRequest};
pub use crate::answer::{Format, Structure};

use crate::registry::LoadedModel;
use crate::scheduler::{EnqueueError, Event, EventStream};

pub use crate::grammar::GrammarError;
pub use crate::scheduler::FinishReason;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error("the queue is full: try again later")]
    QueueFull,
    #[error("the engine has stopped")]
    Stopped,
}

impl From<EnqueueError> for SubmitError {
    fn from(error: EnqueueError) -> Self {
        match error {
            EnqueueError::QueueFull => Self::QueueFull,
            EnqueueError::Stopped => Self::Stopped,
        }
    }
}

/// Token counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt: u32,
    /// Of the prompt's, found in the prefix cache.
    pub cached: u32,
    pub generated: u32,
}

/// What a generation yields: texts, then exactly one of the other two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Text(String),
    Finished(FinishReason, Counts),
    Failed(String),
}

/// Hands a request to its model's engine thread.
pub fn submit(request: ValidRequest) -> Result<Generation, SubmitError> {
    let ValidRequest { model, sequence, stop } = request;
    let text = TextState::new(sequence.prompt.len() as u32, sequence.params.min_tokens, &stop);
    // Nothing to generate (an echo): the engine does not hear of it.
    let events = if sequence.max_tokens == 0 { None } else { Some(model.handle.enqueue(sequence)?) };
    Ok(Generation { model, events, text, last: None, done: false })
}

/// A running generation. Dropping it cancels the sequence.
pub struct Generation {
    model: Arc<LoadedModel>,
    events: Option<EventStream>,
    text: TextState,
    /// What follows a text that came out with the last event.
    last: Option<Output>,
    done: bool,
}

impl Generation {
    /// None after the last output. Cancel safe.
    pub async fn next(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.ready() {
                return output;
            }
            let event = match &mut self.events {
                Some(events) => events.next().await,
                None => Some(self.text.nothing()),
            };
            if let Some(output) = self.take(event) {
                return Some(output);
            }
        }
    }

    /// Does the engine still run? Tells a failed request from a failed engine.
    pub fn engine_alive(&self) -> bool {
        self.model.handle.is_alive()
    }

    fn ready(&mut self) -> Option<Option<Output>> {
        if let Some(output) = self.last.take() {
            return Some(Some(output));
        }
        self.done.then_some(None)
    }

    fn take(&mut self, event: Option<Event>) -> Option<Output> {
        let step = match event {
            Some(Event::Token { id, .. }) => {
                self.text.counts.cached = self.events.as_ref().map_or(0, EventStream::cached_tokens);
                self.text.token(self.model.tokenizer.token_bytes(id, false).unwrap_or_default())
            }
            Some(Event::Finished { reason, cached_tokens, .. }) => self.text.finished(reason, cached_tokens),
            Some(Event::Failed(message)) => Step { text: String::new(), last: Some(Output::Failed(message)) },
            None => Step { text: String::new(), last: Some(Output::Failed("the engine has stopped".into())) },
        };
        if step.last.is_some() {
            self.done = true;
            // Frees the sequence's blocks now rather than when the client has read everything.
            self.events = None;
        }
        self.last = step.last;
        if step.text.is_empty() { self.last.take() } else { Some(Output::Text(step.text)) }
    }
}

/// What an event led to: text that may be shown (perhaps empty), and the end if it is one.
#[derive(Debug, PartialEq)]
struct Step {
    text: String,
    last: Option<Output>,
}

/// Text and counts of one generation.
struct TextState {
    detokenizer: Detokenizer,
    counts: Counts,
    min_tokens: u32,
}

impl TextState {
    fn new(prompt: u32, min_tokens: u32, stop: &[String]) -> Self {
        Self { detokenizer: Detokenizer::new(stop), counts: Counts { prompt, ..Counts::default() }, min_tokens }
    }

    fn nothing(&self) -> Event {
        Event::Finished { reason: FinishReason::Length, prompt_tokens: self.counts.prompt, cached_tokens: 0, generated_tokens: 0 }
    }

    fn token(&mut self, bytes: &[u8]) -> Step {
        self.counts.generated += 1;
        if self.counts.generated < self.min_tokens {
            return Step { text: self.detokenizer.push_unstoppable(bytes), last: None };
        }
        let piece = self.detokenizer.push(bytes);
        self.step(piece, None)
    }

    fn finished(&mut self, reason: FinishReason, cached: u32) -> Step {
        self.counts.cached = cached;
        let piece = self.detokenizer.finish();
        self.step(piece, Some(reason))
    }

    fn step(&self, piece: Piece, reason: Option<FinishReason>) -> Step {
        let (text, reason) = match piece {
            Piece::Text(text) => (text, reason),
            Piece::Stopped(text) => (text, Some(FinishReason::Stop)),
        };
        Step { text, last: reason.map(|reason| Output::Finished(reason, self.counts)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_text_ends_the_generation() {
        let mut state = TextState::new(5, 0, &["END".into()]);
        assert_eq!(state.token(b"one E"), Step { text: "one ".into(), last: None });
        let counts = Counts { prompt: 5, cached: 0, generated: 2 };
        assert_eq!(state.token(b"ND two"), Step { text: String::new(), last: Some(Output::Finished(FinishReason::Stop, counts)) });
    }

    #[test]
    fn the_end_shows_what_was_held_back() {
        let mut state = TextState::new(5, 0, &["END".into()]);
        state.token(b"one EN");
        let counts = Counts { prompt: 5, cached: 4, generated: 1 };
        assert_eq!(
            state.finished(FinishReason::Length, 4),
            Step { text: "EN".into(), last: Some(Output::Finished(FinishReason::Length, counts)) }
        );
    }

    #[test]
    fn stop_texts_wait_for_the_least_tokens() {
        let mut state = TextState::new(1, 2, &["x".into()]);
        assert_eq!(state.token(b"ax"), Step { text: "ax".into(), last: None });
        assert_eq!(state.token(b"bx").text, "b");
    }
}
