//! From a validated request to a stream of text, and back.

mod again;
mod detokenizer;
pub mod embedding;
mod request;
mod text;
mod tokens;

use std::collections::VecDeque;
use std::sync::Arc;

pub use crate::answer::{Choice as ToolChoice, Format, Structure, Tool, Tools};
use crate::answer::{Delta, Parser};
use again::Again;
pub use detokenizer::{Detokenizer, Piece};
pub use request::{Budget, Options, Prompt, RequestError, SamplingParams, ValidRequest};
pub use text::{Conversation, apply_template, detokenize, pieces, tokenize, tokenize_chat};
pub use tokens::TokenLogprob;

use crate::logits::Logprobs;
use crate::registry::LoadedModel;
use crate::scheduler::{EnqueueError, Event, EventStream, Family};

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
    /// Of the generated, spent on reasoning.
    pub reasoning: u32,
}

/// A piece of the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Text {
    pub text: String,
    /// Those that begin in what is shown so far, where log-probabilities were asked for.
    pub tokens: Vec<TokenLogprob>,
}

/// What a generation yields: the prompt's tokens where their log-probabilities were asked for, texts, reasoning and calls, then exactly one of
/// the last three.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Prompt(Vec<TokenLogprob>),
    Text(Text),
    Reasoning(String),
    /// A tool call begins: its number, from 0, and its function.
    Call(usize, String),
    /// More of that call's arguments.
    Arguments(usize, String),
    /// Nothing but a call that was answered already; see [`Generation::ask_again`].
    Repeated(String, String),
    Finished(FinishReason, Counts),
    Failed(String),
    /// What the request asks for in this field cannot be followed any further, and why.
    Unfollowable(&'static str, String),
}

/// Hands a request to its model's engine thread.
pub fn submit(request: ValidRequest) -> Result<Generation, SubmitError> {
    let ValidRequest { model, sequence, stop, echo, parser, again, rules } = request;
    let mut text = TextState::new(sequence.prompt.len() as u32, sequence.params.min_tokens, &stop);
    let again = again.map(|again| (again, sequence.params.seed));
    text.wants_logprobs = sequence.num_logprobs.is_some();
    text.parser = parser;
    let prompt = sequence.score_prompt.map(|_| PromptState { ids: sequence.prompt.clone(), echo, logprobs: Vec::new() });
    // Nothing to generate and nothing to tell of the prompt (an echo): the engine does not hear of it.
    let idle = sequence.max_tokens == 0 && prompt.is_none();
    let events = if idle { None } else { Some(model.handle.enqueue(sequence)?) };
    Ok(Generation { model, events, prompt, text, again, rules, queued: VecDeque::new(), done: false })
}

/// Hands in `count` generations of one request, which differ in their seeds only: the prompt is computed once. The first has the
/// request's own seed, and alone tells of the prompt.
pub fn submit_many(request: ValidRequest, count: usize) -> Result<Vec<Generation>, SubmitError> {
    let family = (count > 1).then(Family::unique);
    let request_of = |index: usize| {
        let mut one = request.clone();
        one.sequence.family = family;
        // Seeds far apart: 5's second is not 6's first.
        one.sequence.params.seed = request.sequence.params.seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        one.sequence.score_prompt = request.sequence.score_prompt.filter(|_| index == 0);
        submit(one)
    };
    (0..count).map(request_of).collect()
}

/// A running generation. Dropping it cancels the sequence.
pub struct Generation {
    model: Arc<LoadedModel>,
    events: Option<EventStream>,
    /// Until the prompt's tokens have been handed out, where they are wanted.
    prompt: Option<PromptState>,
    text: TextState,
    /// With the seed of this one's draws.
    again: Option<(Arc<Again>, u64)>,
    /// The field of the request that says what the text must follow.
    rules: &'static str,
    /// What came out with the last event and was not handed out.
    queued: VecDeque<Output>,
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
        if let Some(output) = self.scored_prompt().or_else(|| self.queued.pop_front()) {
            return Some(Some(output));
        }
        self.done.then_some(None)
    }

    fn take(&mut self, event: Option<Event>) -> Option<Output> {
        let step = match event {
            Some(Event::Scored(logprobs)) => {
                self.prompt.iter_mut().for_each(|prompt| prompt.logprobs.extend_from_slice(&logprobs));
                return None;
            }
            Some(Event::Token { id, logprobs }) => self.take_token(id, logprobs.as_deref()),
            Some(Event::Finished { reason, cached_tokens, .. }) => self.text.finished(reason, cached_tokens),
            Some(Event::Failed(message)) => Step::failed(message),
            Some(Event::Unfollowable(message)) => Step::last(Output::Unfollowable(self.rules, message)),
            Some(Event::Pooled(_)) | None => Step::failed("the engine has stopped".into()),
        };
        if step.last.is_some() {
            self.done = true;
            // Frees the sequence's blocks now rather than when the client has read everything.
            self.events = None;
        }
        let cut = match &step.last {
            Some(Output::Finished(reason, _)) => Some(*reason == FinishReason::Length),
            _ => None,
        };
        self.queued.extend(self.text.parts(step.shown, cut));
        self.queued.extend(step.last);
        self.queued.pop_front()
    }

    fn take_token(&mut self, id: u32, logprobs: Option<&Logprobs>) -> Step {
        self.text.counts.cached = self.events.as_ref().map_or(0, EventStream::cached_tokens);
        let tokenizer = &self.model.tokenizer;
        if self.text.wants_logprobs {
            let Some(logprobs) = logprobs else { return Step::failed("the logits are not finite".into()) };
            self.text.pending.push_back(TokenLogprob::new(tokenizer, id, self.text.num_decoded(), logprobs));
        }
        let tag = self.model.style.as_ref().is_some_and(|style| self.text.parser.is_some() && style.tags.contains(&id));
        self.text.token(tokenizer.token_bytes(id, tag).unwrap_or_default())
    }

    /// The prompt's tokens, once the last of them has come.
    fn scored_prompt(&mut self) -> Option<Output> {
        let PromptState { ids, echo, logprobs } = self.prompt.take_if(|prompt| prompt.logprobs.len() + 1 >= prompt.ids.len())?;
        Some(Output::Prompt(tokens::prompt_tokens(&self.model.tokenizer, &ids, &echo, &logprobs)))
    }
}

/// A prompt whose tokens' log-probabilities are wanted.
struct PromptState {
    ids: Vec<u32>,
    echo: String,
    logprobs: Vec<Logprobs>,
}

/// What an event led to: text that may be shown (perhaps empty), and the end if it is one.
#[derive(Debug, PartialEq)]
struct Step {
    shown: Text,
    last: Option<Output>,
}

impl Step {
    fn failed(message: String) -> Self {
        Self::last(Output::Failed(message))
    }

    fn last(output: Output) -> Self {
        Self { shown: Text::default(), last: Some(output) }
    }
}

/// Text and counts of one generation.
struct TextState {
    detokenizer: Detokenizer,
    counts: Counts,
    min_tokens: u32,
    wants_logprobs: bool,
    /// Characters shown.
    num_shown: usize,
    /// Tokens whose text is not shown yet.
    pending: VecDeque<TokenLogprob>,
    /// Tokens of which it is not clear yet whether they are text.
    unclear: VecDeque<TokenLogprob>,
    /// None: all is text.
    parser: Option<Parser>,
}

impl TextState {
    fn new(prompt: u32, min_tokens: u32, stop: &[String]) -> Self {
        let counts = Counts { prompt, ..Counts::default() };
        let (pending, unclear, detokenizer) = (VecDeque::new(), VecDeque::new(), Detokenizer::new(stop));
        Self { detokenizer, counts, min_tokens, wants_logprobs: false, num_shown: 0, pending, unclear, parser: None }
    }

    /// Characters of the text so far, those held back included.
    fn num_decoded(&self) -> usize {
        self.num_shown + self.detokenizer.num_held()
    }

    fn nothing(&self) -> Event {
        Event::Finished { reason: FinishReason::Length, prompt_tokens: self.counts.prompt, cached_tokens: 0, generated_tokens: 0 }
    }

    /// What a text is made of; `cut` where it is the last one. Log-probabilities come with text alone.
    fn parts(&mut self, shown: Text, cut: Option<bool>) -> Vec<Output> {
        let Some(parser) = &mut self.parser else {
            return if shown == Text::default() { Vec::new() } else { vec![Output::Text(shown)] };
        };
        let mut deltas = parser.push(&shown.text);
        deltas.extend(cut.into_iter().flat_map(|cut| parser.finish(cut)));
        let position = parser.position();
        self.unclear.extend(shown.tokens);
        let part = |delta| match delta {
            Delta::Text(at, text) => Output::Text(Text { tokens: self.tokens_of(at, &text), text }),
            Delta::Reasoning(text) => Output::Reasoning(text),
            Delta::Call(index, name) => Output::Call(index, name),
            Delta::Arguments(index, text) => Output::Arguments(index, text),
            Delta::Repeated(name, arguments) => Output::Repeated(name, arguments),
        };
        let parts = deltas.into_iter().map(part).collect();
        self.skip_tokens(position);
        parts
    }

    /// The tokens of a text that begins at this character.
    fn tokens_of(&mut self, at: usize, text: &str) -> Vec<TokenLogprob> {
        self.skip_tokens(at);
        let end = at + text.chars().count();
        let count = self.unclear.iter().take_while(|token| token.offset < end).count();
        self.unclear.drain(..count).collect()
    }

    /// Drops those that end before this character: they are no text.
    fn skip_tokens(&mut self, at: usize) {
        let ends = |token: &TokenLogprob| token.offset + String::from_utf8_lossy(&token.bytes).chars().count();
        while self.unclear.pop_front_if(|token| ends(token) <= at).is_some() {}
    }

    fn token(&mut self, bytes: &[u8]) -> Step {
        self.counts.generated += 1;
        self.counts.reasoning += u32::from(self.parser.as_ref().is_some_and(Parser::is_reasoning));
        // A call ends where its rules say: cut by a stop text it would be none.
        if self.counts.generated < self.min_tokens || self.parser.as_ref().is_some_and(Parser::is_calling) {
            let text = self.detokenizer.push_unstoppable(bytes);
            return Step { shown: self.shown(text), last: None };
        }
        let piece = self.detokenizer.push(bytes);
        self.step(piece, None)
    }

    fn finished(&mut self, reason: FinishReason, cached: u32) -> Step {
        self.counts.cached = cached;
        let piece = self.detokenizer.finish();
        self.step(piece, Some(reason))
    }

    fn step(&mut self, piece: Piece, reason: Option<FinishReason>) -> Step {
        let (shown, reason) = match piece {
            Piece::Text(text) => {
                let mut shown = self.shown(text);
                if reason.is_some() {
                    shown.tokens.extend(self.pending.drain(..));
                }
                (shown, reason)
            }
            // What begins within the stop text is no part of the output.
            Piece::Stopped(text) => (self.shown(text), Some(FinishReason::Stop)),
        };
        Step { shown, last: reason.map(|reason| Output::Finished(reason, self.counts)) }
    }

    /// A text with the tokens that begin before its end.
    fn shown(&mut self, text: String) -> Text {
        if !self.wants_logprobs {
            return Text { text, tokens: Vec::new() };
        }
        self.num_shown += text.chars().count();
        let num_tokens = self.pending.iter().take_while(|token| token.offset < self.num_shown).count();
        Text { text, tokens: self.pending.drain(..num_tokens).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_text_ends_the_generation() {
        let mut state = TextState::new(5, 0, &["END".into()]);
        assert_eq!(state.token(b"one E"), Step { shown: text("one "), last: None });
        let counts = Counts { prompt: 5, cached: 0, generated: 2, reasoning: 0 };
        assert_eq!(state.token(b"ND two"), Step { shown: text(""), last: Some(Output::Finished(FinishReason::Stop, counts)) });
    }

    #[test]
    fn the_end_shows_what_was_held_back() {
        let mut state = TextState::new(5, 0, &["END".into()]);
        state.token(b"one EN");
        let counts = Counts { prompt: 5, cached: 4, generated: 1, reasoning: 0 };
        assert_eq!(
            state.finished(FinishReason::Length, 4),
            Step { shown: text("EN"), last: Some(Output::Finished(FinishReason::Length, counts)) }
        );
    }

    #[test]
    fn stop_texts_wait_for_the_least_tokens() {
        let mut state = TextState::new(1, 2, &["x".into()]);
        assert_eq!(state.token(b"ax"), Step { shown: text("ax"), last: None });
        assert_eq!(state.token(b"bx").shown, text("b"));
    }

    /// The bytes of the tokens that come with each piece.
    fn shown_with(state: &mut TextState, bytes: &[u8]) -> (String, Vec<Vec<u8>>) {
        let offset = state.num_decoded();
        state.pending.push_back(TokenLogprob { bytes: bytes.to_vec(), offset, logprob: Some(0.0), top: Vec::new() });
        let Text { text, tokens } = state.token(bytes).shown;
        (text, tokens.into_iter().map(|token| token.bytes).collect())
    }

    #[test]
    fn tokens_come_with_the_text_that_they_begin_in() {
        let mut state = TextState { wants_logprobs: true, ..TextState::new(1, 0, &["END".into()]) };
        assert_eq!(shown_with(&mut state, "aé".as_bytes()), ("aé".into(), vec!["aé".as_bytes().to_vec()]));
        assert_eq!(shown_with(&mut state, &[0xe2, 0x82]), (String::new(), vec![]), "a part of a character");
        assert_eq!(shown_with(&mut state, &[0xac]), ("€".into(), vec![vec![0xe2, 0x82], vec![0xac]]));
        assert_eq!(state.pending.len(), 0);
        assert_eq!(shown_with(&mut state, b"xE"), ("x".into(), vec![b"xE".to_vec()]));
        assert_eq!(shown_with(&mut state, b"N"), (String::new(), vec![]), "it may be the stop text");
        assert_eq!(shown_with(&mut state, b"D!"), (String::new(), vec![]), "it is: its tokens are no output");
    }

    #[test]
    fn at_the_end_no_token_is_left_behind() {
        let mut state = TextState { wants_logprobs: true, ..TextState::new(1, 0, &["END".into()]) };
        assert_eq!(shown_with(&mut state, b"x E"), ("x ".into(), vec![b"x E".to_vec()]));
        assert_eq!(shown_with(&mut state, b"N").1.len(), 0);
        assert_eq!(shown_with(&mut state, b"").1.len(), 0, "a token without a text");
        let last = state.finished(FinishReason::Length, 0).shown;
        assert_eq!((last.text.as_str(), last.tokens.len()), ("EN", 2));
    }

    fn text(text: &str) -> Text {
        Text { text: text.into(), tokens: Vec::new() }
    }
}
