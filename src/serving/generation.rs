//! A running generation: pieces, and an end.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;

use super::adapters::{adapter_names, track};
use super::error::{Failure, SubmitError};
use super::ledger::Account;
use super::logprobs::{prompt_tokens, token_logprob};
use super::model::Model;
use super::output::{End, EndReason, Output, StopCause};
use super::repeat_detector::RepeatDetector;
use super::request::ValidRequest;
use super::tool_retry::ToolRetry;
use super::transcript::Transcript;
use chat::{Piece, Repeated, Subject};
use logits::Logprobs;
use scheduler::{Event, EventStream, FinishReason, RequestHandle};

/// A running generation. Dropping it cancels the sequence.
pub(super) struct Generation {
    model: Arc<Model>,
    source: TokenSource,
    prompt: PromptTokens,
    transcript: Transcript,
    /// The second try, in case the model repeats a call, and the seed of this generation.
    retry: Option<(Arc<ToolRetry>, u64)>,
    /// The part of the request that the rules of the answer come from.
    rules: Subject,
    /// Stop ids given in the request.
    own_stop_ids: Vec<u32>,
    show_control: bool,
    /// Ids of the answer since [`take_ids`](Self::take_ids) was last called, if the request wants them.
    ids: Option<Vec<u32>>,
    /// Present for an answer that must make calls and may make several.
    repeats: Option<RepeatDetector>,
    account: Account,
}

/// The source of a generation's next output.
enum TokenSource {
    Engine(EventStream),
    /// There is nothing to generate.
    Nothing,
    /// The second try is being prepared because the model repeated this call. The task returns `None` if there is no second try.
    SecondTry(JoinHandle<Option<ValidRequest>>, Repeated),
    /// The answer is complete. Its end is the next output, unless it was returned.
    Ended(Option<Result<End, Failure>>),
}

/// The prompt's tokens with their log-probabilities, which precede the answer.
enum PromptTokens {
    /// They are not requested, or were returned.
    Done,
    Scoring(ScoredPrompt),
    /// Another choice of the same prompt scores them. This one begins when they come.
    Awaited,
    Ready(Piece),
}

/// A prompt whose tokens' log-probabilities are requested.
struct ScoredPrompt {
    ids: Arc<[u32]>,
    echo: String,
    logprobs: Vec<Logprobs>,
}

impl Generation {
    /// Hands a request to its model's engine thread. Its tokens count in `account`.
    pub(super) fn start(handle: &mut RequestHandle<'_>, request: ValidRequest, account: Account) -> Result<Self, SubmitError> {
        let has_sequence = request.has_sequence();
        let scored = |_| ScoredPrompt { ids: request.sequence.prompt.tokens().clone(), echo: request.echo.clone(), logprobs: Vec::new() };
        let prompt = request.sequence.score_prompt.map(scored).map_or(PromptTokens::Done, PromptTokens::Scoring);
        let ValidRequest { model, options, sequence, stop, parser, meter, retry, rules, .. } = request;
        let (own_stop_ids, show_control) = (options.stop_token_ids.clone(), options.show_control);
        let transcript = Transcript::new(&sequence, &stop, parser, account.clone()).with_meter(meter);
        let retry = retry.map(|retry| (retry, sequence.params.seed));
        let names = adapter_names(&model.adapters, &sequence.adapters);
        let source = if has_sequence { TokenSource::Engine(handle.enqueue(sequence)?) } else { TokenSource::Nothing };
        if let TokenSource::Engine(events) = &source {
            account.follow(events.progress());
            track(names, events.progress());
        }
        let (ids, repeats) = (options.return_ids.then(Vec::new), request.calls_several.then(RepeatDetector::default));
        Ok(Self { model, source, prompt, transcript, retry, rules, own_stop_ids, show_control, ids, repeats, account })
    }

    pub(super) fn account(&self) -> &Account {
        &self.account
    }

    /// Holds the generation back until another choice has scored the prompt.
    pub(super) fn await_prompt(&mut self) {
        self.prompt = PromptTokens::Awaited;
    }

    /// Gives the scored prompt to a generation that waits for it.
    pub(super) fn give_prompt(&mut self, tokens: &Piece) {
        self.prompt = PromptTokens::Ready(tokens.clone());
    }

    /// The next pieces or the end. `None` after the end or a failure.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Output, Failure>>> {
        loop {
            if let PromptTokens::Awaited = self.prompt {
                return Poll::Pending;
            }
            if let Some(tokens) = self.scored_prompt() {
                return Poll::Ready(Some(Ok(Output::Pieces(vec![tokens]))));
            }
            let pieces = match &mut self.source {
                TokenSource::Engine(events) => {
                    let event = ready!(pin!(events.next()).poll(context));
                    self.take(event)
                }
                TokenSource::Nothing => self.finish(FinishReason::Length, None),
                TokenSource::SecondTry(task, _) => {
                    let next = ready!(Pin::new(task).poll(context)).ok().flatten();
                    self.go_on_with(next)
                }
                TokenSource::Ended(end) => {
                    let end = end.take();
                    end.iter().flatten().for_each(|end| self.account.end(end.reason));
                    return Poll::Ready(end.map(|end| end.map(Output::End)));
                }
            };
            if !pieces.is_empty() {
                return Poll::Ready(Some(Ok(Output::Pieces(pieces))));
            }
        }
    }

    /// The ids of the answer since the last call. Empty unless the request wants them.
    pub(super) fn take_ids(&mut self) -> Vec<u32> {
        self.ids.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn take(&mut self, event: Option<Event>) -> Vec<Piece> {
        match event {
            Some(Event::Scored(scores)) => {
                if let PromptTokens::Scoring(prompt) = &mut self.prompt {
                    prompt.logprobs.extend(scores);
                }
                Vec::new()
            }
            Some(Event::Token { id, logprobs }) => self.token(id, logprobs.as_deref()),
            Some(Event::Finished { reason, stopped_by, .. }) => {
                self.ids.iter_mut().for_each(|ids| ids.extend(stopped_by));
                self.finish(reason, stopped_by)
            }
            Some(Event::Failed(message)) => self.fail(message),
            Some(Event::Unfollowable(message)) => self.end(Err(Failure::Rules { subject: self.rules, message })),
            Some(Event::Pooled(_)) | None => self.fail("the engine has stopped"),
        }
    }

    fn token(&mut self, id: u32, logprobs: Option<&Logprobs>) -> Vec<Piece> {
        let tokenizer = &self.model.base.tokenizer;
        if self.transcript.wants_logprobs {
            let Some(logprobs) = logprobs else { return self.fail("the logits are not finite") };
            let token = token_logprob(tokenizer, id, self.transcript.num_decoded(), logprobs);
            self.transcript.add_token(token);
        }
        // The parser needs the control tokens that mark calls and reasoning.
        let is_tag = self.model.dialect.as_ref().is_some_and(|dialect| self.transcript.has_parser() && dialect.tags.contains(&id));
        let bytes = tokenizer.token_bytes(id, is_tag || self.show_control).unwrap_or_default();
        let (pieces, end) = self.transcript.token(bytes);
        self.ids.iter_mut().for_each(|ids| ids.push(id));
        self.checked(pieces, end, None)
    }

    fn finish(&mut self, reason: FinishReason, stopped_by: Option<u32>) -> Vec<Piece> {
        let (pieces, reason) = self.transcript.finish(reason);
        let own = stopped_by.filter(|id| self.own_stop_ids.contains(id));
        self.checked(pieces, Some(reason), own.map(StopCause::Token))
    }

    /// Returns the pieces to pass on. Ends the answer if it has ended or repeats itself.
    fn checked(&mut self, mut pieces: Vec<Piece>, end: Option<EndReason>, stop: Option<StopCause>) -> Vec<Piece> {
        let mut is_repeating = false;
        if let Some(repeats) = &mut self.repeats {
            (pieces, is_repeating) = repeats.filter(pieces);
            if end.is_some() && !is_repeating {
                pieces.extend(repeats.release());
            }
        }
        if let Some(repeated) = self.transcript.take_repeated() {
            pieces.extend(self.ask_again(repeated));
        } else if is_repeating {
            self.end(Ok((EndReason::Calls, None)));
        } else if let Some(reason) = end {
            self.end(Ok((reason, self.transcript.stopped_by().map(StopCause::Text).or(stop))));
        }
        pieces
    }

    /// Prepares the second try, which replaces this generation. Encoding the prompt takes long, so a blocking thread does it.
    fn ask_again(&mut self, repeated: Repeated) -> Vec<Piece> {
        let Some((retry, seed)) = self.retry.take() else { return self.end_with_call(repeated) };
        let (model, spent) = (self.model.clone(), self.account.counts());
        let task = tokio::task::spawn_blocking(move || ValidRequest::second_try(model, &retry, spent, seed));
        self.source = TokenSource::SecondTry(task, repeated);
        Vec::new()
    }

    /// Replaces this generation by the second try. Without a second try, the repeated call is the answer.
    fn go_on_with(&mut self, next: Option<ValidRequest>) -> Vec<Piece> {
        // The account goes on: the client knows the first prompt, and the tokens of both tries count as generated.
        let next = next.and_then(|request| {
            let model = request.model.clone();
            let mut handle = model.base.handle.request(request.options.client, request.prompts(1)).ok()?;
            Self::start(&mut handle, request, self.account.clone()).ok()
        });
        match (next, std::mem::replace(&mut self.source, TokenSource::Ended(None))) {
            (Some(next), _) => *self = next,
            (None, TokenSource::SecondTry(_, repeated)) => return self.end_with_call(repeated),
            (None, _) => {}
        }
        Vec::new()
    }

    fn end_with_call(&mut self, call: Repeated) -> Vec<Piece> {
        self.end(Ok((EndReason::Calls, None)));
        call.into_pieces().into()
    }

    fn fail(&mut self, message: impl Into<String>) -> Vec<Piece> {
        let alive = match &self.source {
            TokenSource::Engine(events) => events.is_engine_alive(),
            _ => self.model.base.handle.is_alive(),
        };
        let failure = Failure::new(message, alive);
        self.end(Err(failure))
    }

    fn end(&mut self, end: Result<(EndReason, Option<StopCause>), Failure>) -> Vec<Piece> {
        // Frees the sequence's blocks now, not when the client has read everything.
        self.source = TokenSource::Ended(Some(end.map(|(reason, stop)| End { reason, stop })));
        Vec::new()
    }

    /// The prompt's tokens, once the last one is scored.
    fn scored_prompt(&mut self) -> Option<Piece> {
        match std::mem::replace(&mut self.prompt, PromptTokens::Done) {
            PromptTokens::Scoring(ScoredPrompt { ids, echo, logprobs }) if logprobs.len() + 1 >= ids.len() => {
                Some(Piece::Prompt(prompt_tokens(&self.model.base.tokenizer, &ids, &echo, &logprobs)))
            }
            PromptTokens::Ready(tokens) => Some(tokens),
            other => {
                self.prompt = other;
                None
            }
        }
    }
}
