//! A running generation: a stream of pieces and an end.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::error::{Failure, SubmitError};
use super::logprobs::{prompt_tokens, token_logprob};
use super::model::Model;
use super::output::{Counts, End, EndReason, Output, StopCause};
use super::repeat_detector::RepeatDetector;
use super::request::ValidRequest;
use super::request_usage::RequestUsage;
use super::tool_retry::ToolRetry;
use super::transcript::Transcript;
use chat::{Piece, Repeated, Subject};
use logits::Logprobs;
use scheduler::{Event, EventStream, FinishReason, RequestHandle, SequenceGroup};

/// Submits a request to its model's engine thread.
pub fn submit(request: ValidRequest) -> Result<Generation, SubmitError> {
    let model = request.model.clone();
    let mut handle = model.base.handle.request(request.client, request.prompts(1))?;
    submit_to(&mut handle, request)
}

/// Submits the prompts of one client's request, with `count` generations per prompt that differ only in their seeds. They share the engine
/// with other requests as one. All are accepted or none. Each prompt is computed once. Its first generation has the request's own seed, and
/// only the first returns the prompt.
pub fn submit_all(requests: Vec<ValidRequest>, count: usize) -> Result<Vec<Generation>, SubmitError> {
    let Some((model, client)) = requests.first().map(|request| (request.model.clone(), request.client)) else { return Ok(Vec::new()) };
    let mut handle = model.base.handle.request(client, requests.iter().flat_map(|request| request.prompts(count)))?;
    let mut generations = Vec::with_capacity(requests.len() * count);
    for request in requests {
        let sequence_group = (count > 1).then(SequenceGroup::unique);
        for index in 0..count {
            let mut one = request.clone();
            one.sequence.sequence_group = sequence_group;
            // Seeds are spread, so that the second choice of seed 5 is not the first choice of seed 6.
            one.sequence.params.seed = request.sequence.params.seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            one.sequence.score_prompt = request.sequence.score_prompt.filter(|_| index == 0);
            generations.push(submit_to(&mut handle, one)?);
        }
    }
    Ok(generations)
}

fn submit_to(handle: &mut RequestHandle<'_>, request: ValidRequest) -> Result<Generation, SubmitError> {
    let has_sequence = request.has_sequence();
    let ValidRequest {
        model,
        sequence,
        stop,
        own_stop_ids,
        calls_several,
        show_control,
        return_ids,
        echo,
        parser,
        meter,
        retry,
        rules,
        ..
    } = request;
    let transcript = Transcript::new(&sequence, &stop, parser).with_meter(meter);
    let retry = retry.map(|retry| (retry, sequence.params.seed));
    let scored = sequence.score_prompt.map(|_| ScoredPrompt { ids: sequence.prompt.tokens().clone(), echo, logprobs: Vec::new() });
    let source = if has_sequence { TokenSource::Engine(handle.enqueue(sequence)?) } else { TokenSource::Nothing };
    let account = RequestUsage::default();
    if let TokenSource::Engine(events) = &source {
        account.add(events.progress());
    }
    let (ids, repeats) = (return_ids.then(Vec::new), calls_several.then(RepeatDetector::default));
    let ready = VecDeque::new();
    Ok(Generation { model, source, scored, transcript, retry, rules, own_stop_ids, show_control, ids, repeats, account, ready })
}

/// The source of a generation's next output.
enum TokenSource {
    Engine(EventStream),
    /// There is nothing to generate.
    Nothing,
    /// The second try is being submitted because the model repeated this call. The task returns `None` if there is no second try.
    SecondTry(JoinHandle<Option<Generation>>, Repeated),
    Ended,
}

/// A running generation. Dropping it cancels the sequence.
pub struct Generation {
    model: Arc<Model>,
    source: TokenSource,
    /// `None` once the prompt's tokens were returned, or if they are not requested.
    scored: Option<ScoredPrompt>,
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
    account: RequestUsage,
    ready: VecDeque<Result<Output, Failure>>,
}

/// A prompt whose tokens' log-probabilities are requested.
struct ScoredPrompt {
    ids: Arc<[u32]>,
    echo: String,
    logprobs: Vec<Logprobs>,
}

impl Generation {
    /// The usage so far.
    pub fn account(&self) -> &RequestUsage {
        &self.account
    }

    /// The next piece or the end. `None` after the end or a failure. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Output, Failure>> {
        loop {
            if let Some(piece) = self.scored_prompt() {
                return Some(Ok(Output::Piece(piece)));
            }
            if let Some(output) = self.ready.pop_front() {
                return Some(output);
            }
            match &mut self.source {
                TokenSource::Engine(events) => {
                    let event = events.next().await;
                    self.take(event);
                }
                TokenSource::Nothing => self.finish(FinishReason::Length, None, 0),
                TokenSource::SecondTry(task, _) => {
                    let next = task.await.ok().flatten();
                    self.go_on_with(next);
                }
                TokenSource::Ended => return None,
            }
        }
    }

    /// Number of tokens generated so far.
    pub fn num_generated(&self) -> u32 {
        self.transcript.counts.generated
    }

    /// The ids of the answer since the last call. Empty unless the request wants them.
    pub fn take_ids(&mut self) -> Vec<u32> {
        self.ids.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Scored(logprobs)) => {
                self.scored.iter_mut().for_each(|prompt| prompt.logprobs.extend_from_slice(&logprobs));
            }
            Some(Event::Token { id, logprobs }) => self.token(id, logprobs.as_deref()),
            Some(Event::Finished { reason, stopped_by, cached_tokens, .. }) => {
                self.ids.iter_mut().for_each(|ids| ids.extend(stopped_by));
                self.finish(reason, stopped_by, cached_tokens);
            }
            Some(Event::Failed(message)) => self.fail(message),
            Some(Event::Unfollowable(message)) => self.end(Err(Failure::Rules { subject: self.rules, message })),
            Some(Event::Pooled(_)) | None => self.fail("the engine has stopped"),
        }
    }

    fn token(&mut self, id: u32, logprobs: Option<&Logprobs>) {
        if let TokenSource::Engine(events) = &self.source {
            self.transcript.counts.cached = events.cached_tokens();
        }
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
        self.deliver(pieces, end, None);
    }

    fn finish(&mut self, reason: FinishReason, stopped_by: Option<u32>, cached: u32) {
        let (pieces, reason) = self.transcript.finish(reason, cached);
        let own = stopped_by.filter(|id| self.own_stop_ids.contains(id));
        self.deliver(pieces, Some(reason), own.map(StopCause::Token));
    }

    fn deliver(&mut self, mut pieces: Vec<Piece>, end: Option<EndReason>, stop: Option<StopCause>) {
        let mut is_repeating = false;
        if let Some(repeats) = &mut self.repeats {
            (pieces, is_repeating) = repeats.filter(pieces);
            if end.is_some() && !is_repeating {
                pieces.extend(repeats.release());
            }
        }
        self.ready.extend(pieces.into_iter().map(|piece| Ok(Output::Piece(piece))));
        if let Some(repeated) = self.transcript.take_repeated() {
            self.ask_again(repeated);
        } else if is_repeating {
            self.end(Ok((EndReason::Calls, None)));
        } else if let Some(reason) = end {
            self.end(Ok((reason, self.transcript.stopped_by().map(StopCause::Text).or(stop))));
        }
    }

    /// Starts the second try, which replaces this generation. Encoding the prompt takes long, so a blocking thread does it.
    fn ask_again(&mut self, repeated: Repeated) {
        let Some((retry, seed)) = self.retry.take() else { return self.end_with_call(repeated) };
        let (model, spent) = (self.model.clone(), self.transcript.counts);
        let task = tokio::task::spawn_blocking(move || submit(ValidRequest::second_try(model, &retry, spent, seed)?).ok());
        self.source = TokenSource::SecondTry(task, repeated);
    }

    /// Replaces this generation by the second try. Without a second try, the repeated call is the answer.
    fn go_on_with(&mut self, next: Option<Self>) {
        match (next, std::mem::replace(&mut self.source, TokenSource::Ended)) {
            (Some(mut next), _) => {
                // The counts go on: the client knows the first prompt, and the tokens of both tries count as generated.
                next.transcript.counts = self.transcript.counts;
                if let TokenSource::Engine(events) = &next.source {
                    self.account.add(events.progress());
                }
                next.account = self.account.clone();
                *self = next;
            }
            (None, TokenSource::SecondTry(_, repeated)) => self.end_with_call(repeated),
            (None, _) => {}
        }
    }

    fn end_with_call(&mut self, call: Repeated) {
        self.ready.extend(call.into_pieces().map(|piece| Ok(Output::Piece(piece))));
        self.end(Ok((EndReason::Calls, None)));
    }

    fn fail(&mut self, message: impl Into<String>) {
        let failure = Failure::new(message, self.model.base.handle.is_alive());
        self.end(Err(failure));
    }

    fn end(&mut self, end: Result<(EndReason, Option<StopCause>), Failure>) {
        // The cached tokens of the first prompt: the client does not know the second try's.
        let counts = Counts { cached: self.account.cached_tokens(), ..self.transcript.counts };
        self.ready.push_back(end.map(|(reason, stop)| Output::End(End { reason, counts, stop })));
        // Frees the sequence's blocks now, not when the client has read everything.
        self.source = TokenSource::Ended;
    }

    /// The prompt's tokens, once the last one is scored.
    fn scored_prompt(&mut self) -> Option<Piece> {
        let ScoredPrompt { ids, echo, logprobs } = self.scored.take_if(|prompt| prompt.logprobs.len() + 1 >= prompt.ids.len())?;
        Some(Piece::Prompt(prompt_tokens(&self.model.base.tokenizer, &ids, &echo, &logprobs)))
    }
}
