//! The generations of one response. Each is a choice, and their outputs are read as they arrive.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::web;
use futures_util::future::{Fuse, LocalBoxFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use super::error::{ApiError, Kind};
use super::journal::Journal;
use super::memory_budget::MemoryPermit;
use super::metrics;
use super::request_record::BodyEnd;
use super::state::{ActiveGeneration, AppState, off_loop};
use super::subject::FieldNames;
use super::tenant::Tenant;
use chat::{Piece, Text, TokenLogprob};
use serving::{self, Counts, End, EndReason, Failure, Generation, Model, Options, Output, Prompt, RequestUsage, StopCause, ValidRequest};

/// The longest text that is validated on the event loop. To tokenize on another thread costs two thread switches, which take longer than a
/// short text [bytes].
const CHECK_INLINE: usize = 512;

/// A generation together with the output that it has just yielded.
struct NextOutput {
    index: usize,
    generation: Generation,
    output: Option<Result<Output, Failure>>,
}

/// A request to generate: prompts, options, and the state that the generations need.
pub struct GenerationRequest {
    pub model: Arc<Model>,
    pub prompts: Vec<Prompt>,
    pub options: Options,
    /// Choices per prompt.
    pub num_choices: usize,
    /// Candidates per prompt, of which the likeliest become its choices. With more candidates than choices, the response cannot be
    /// streamed.
    pub best_of: usize,
    /// The dialect's field names, for errors.
    pub names: FieldNames,
    /// The memory that is held for the request.
    pub held: Arc<MemoryPermit>,
    /// The tenant that the request belongs to.
    pub tenant: Tenant,
    pub journal: Rc<Journal>,
}

/// A complete choice.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The prompt's tokens, if they were requested.
    pub prompt: Vec<TokenLogprob>,
    pub shown: Text,
    pub reasoning: String,
    pub calls: Vec<FunctionCall>,
    pub reason: EndReason,
    /// The requested stop condition that ended the choice, if one did.
    pub stop: Option<StopCause>,
    /// The generated token ids, if they were requested.
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

/// How much of a prompt has been computed [tokens]. `processed` includes `cached`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    pub total: u32,
    pub cached: u32,
    pub processed: u32,
}

/// The running generations of a response. Dropping this value cancels them.
pub struct Choices {
    running: FuturesUnordered<LocalBoxFuture<'static, NextOutput>>,
    /// Generations that start once the first one of their prompt has returned the prompt's tokens.
    held: Vec<(usize, Generation)>,
    /// Outputs that have not been returned yet.
    ready: VecDeque<(usize, Output)>,
    /// Each prompt as text. Empty unless the request asks for an echo.
    echoes: Vec<String>,
    num_prompts: usize,
    num_choices: usize,
    best_of: usize,
    names: FieldNames,
    usage: Counts,
    /// The token ids of each prompt. Empty unless the request asks for them.
    prompt_ids: Vec<Vec<u32>>,
    /// The token ids of each generation that have not been taken yet. Empty unless the request asks for them.
    ids: Vec<Vec<u32>>,
    /// The total tokens of all prompts.
    num_prompt: u32,
    /// The generated tokens of each generation that have been counted against the tenant's rate.
    spent: Vec<u32>,
    /// The account of the first generation: its times and counts.
    account: Option<RequestUsage>,
    tenant: Tenant,
    journal: Rc<Journal>,
    /// Completes when the request's time is up.
    overdue: Fuse<LocalBoxFuture<'static, ApiError>>,
    active: ActiveGeneration,
    complete: bool,
    /// The memory of a conversation with tools, which the generations may need again.
    _held: Option<Arc<MemoryPermit>>,
}

/// Validates every prompt, then submits all of them to the engine or none.
pub async fn start(state: web::Data<AppState>, ask: GenerationRequest) -> Result<Choices, ApiError> {
    let GenerationRequest { model, prompts, mut options, num_choices, best_of, names, held, tenant, journal } = ask;
    let active = ActiveGeneration::new(state);
    (options.cache_salt, options.client) = (tenant.salt(options.cache_salt), tenant.client());
    if best_of > num_choices {
        // The log-probabilities decide which candidates are the likeliest.
        options.logprobs = options.logprobs.or(Some(0));
    }
    let return_ids = options.return_ids;
    let scores_prompts = options.prompt_logprobs.is_some() || options.echo && options.logprobs.is_some();
    let echo = options.echo;
    let has_tools = prompts.iter().any(|prompt| matches!(prompt, Prompt::Chat(chat) if chat.tools.is_some()));
    let is_quick = options.format.is_none() && matches!(&prompts[..], [Prompt::Text(text)] if text.len() <= CHECK_INLINE);
    let valid = move || {
        let valid = prompts.into_iter().map(|prompt| ValidRequest::new(model.clone(), prompt, &options)).collect::<Result<Vec<_>, _>>();
        // The closure returns the memory, so it is held until validation ends even if the client has left.
        valid.map(|valid| (valid, held))
    };
    let valid = if is_quick { valid() } else { off_loop(valid).await? };
    let (requests, memory) = valid.map_err(|error| names.request_error(&error))?;
    let num_prompts = requests.len();
    let echoes = if echo { requests.iter().map(|request| request.echo().to_owned()).collect() } else { Vec::new() };
    let prompt_ids = if return_ids { requests.iter().map(|request| request.prompt_ids().to_vec()).collect() } else { Vec::new() };
    let num_prompt: usize = requests.iter().map(ValidRequest::num_prompt_tokens).sum();
    let generations = serving::submit_all(requests, best_of)?;
    tenant.spend(num_prompt as u64);
    let (spent, ids) = (vec![0; generations.len()], vec![Vec::new(); generations.len()]);
    let account = generations.first().map(|first| first.account().clone());
    generations.iter().enumerate().for_each(|(index, generation)| journal.follow(generation.account(), index.is_multiple_of(best_of)));
    let (first, held): (Vec<_>, Vec<_>) =
        generations.into_iter().enumerate().partition(|(index, _)| !scores_prompts || index % best_of == 0);
    let running = first.into_iter().map(|(index, generation)| next(index, generation)).collect();
    let (ready, usage, complete) = (VecDeque::new(), Counts::default(), false);
    Ok(Choices {
        running,
        held,
        ready,
        echoes,
        num_prompts,
        num_choices,
        best_of,
        names,
        usage,
        prompt_ids,
        ids,
        num_prompt: u32::try_from(num_prompt).unwrap_or(u32::MAX),
        spent,
        account,
        tenant,
        overdue: journal.clone().overdue().boxed_local().fuse(),
        journal,
        active,
        complete,
        _held: Some(memory).filter(|_| has_tools),
    })
}

fn next(index: usize, mut generation: Generation) -> LocalBoxFuture<'static, NextOutput> {
    Box::pin(async move {
        let output = generation.next().await;
        NextOutput { index, generation, output }
    })
}

impl Choices {
    /// The number of choices of a streamed response.
    #[expect(clippy::len_without_is_empty, reason = "a request has at least one choice")]
    pub fn len(&self) -> usize {
        self.num_prompts * self.num_choices
    }

    /// The text of each choice's prompt. Empty unless the request asks for an echo.
    pub fn echoes(&self) -> Vec<String> {
        self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo.clone(), self.num_choices)).collect()
    }

    /// The progress of the first prompt. `None` once the prompt has been computed.
    pub fn prompt_progress(&self) -> Option<PromptProgress> {
        let account = self.account.as_ref().filter(|account| account.prefilled().is_none())?;
        let (total, cached, processed) = (account.prompt_tokens(), account.cached_tokens(), account.computed_tokens());
        Some(PromptProgress { total, cached, processed })
    }

    /// The token ids of each choice's prompt. Empty unless the request asks for them.
    pub fn prompt_ids(&self) -> Vec<Vec<u32>> {
        self.prompt_ids.iter().flat_map(|ids| std::iter::repeat_n(ids.clone(), self.num_choices)).collect()
    }

    /// Takes the ids that a choice has generated since the last call. Empty unless the request asks for them.
    pub fn take_ids(&mut self, index: usize) -> Vec<u32> {
        std::mem::take(&mut self.ids[index])
    }

    /// The token counts of all choices so far.
    pub fn usage_so_far(&self) -> Counts {
        Counts { prompt: self.num_prompt, generated: self.spent.iter().sum(), ..self.usage }
    }

    /// The sum of the token counts of the choices that have ended.
    pub fn usage(&self) -> Counts {
        self.usage
    }

    /// The token counts of the prompts, for a stream that reports them before its first piece. Cached tokens are known once the prompts
    /// have been scheduled.
    pub fn begun(&self) -> Counts {
        let cached = u32::try_from(self.journal.cached_tokens()).unwrap_or(u32::MAX);
        Counts { prompt: self.num_prompt, cached: cached.min(self.num_prompt), ..Counts::default() }
    }

    /// Returns the next output of any choice, with the choice's index. `None` once every choice has ended. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<(usize, Output), ApiError>> {
        loop {
            if let Some(output) = self.ready.pop_front() {
                return Some(Ok(output));
            }
            let yielded = tokio::select! {
                yielded = self.running.next() => yielded,
                () = self.active.state().drain.when_cut() => {
                    self.complete = true;
                    return Some(Err(self.refused(ApiError::new(Kind::Draining, "the server is shutting down"))));
                }
                error = &mut self.overdue => {
                    self.complete = true;
                    return Some(Err(self.refused(error)));
                }
            };
            let Some(NextOutput { index, mut generation, output }) = yielded else {
                self.complete = true;
                return None;
            };
            self.spend(index, generation.num_generated());
            self.ids[index].append(&mut generation.take_ids());
            match output {
                Some(Ok(Output::Piece(piece))) => {
                    self.running.push(next(index, generation));
                    self.take(index, piece);
                }
                Some(Ok(Output::End(end))) => {
                    self.count(index, end);
                    self.ready.push_back((index, Output::End(end)));
                }
                Some(Err(failure)) => {
                    self.complete = true;
                    return Some(Err(self.refused(self.names.failure(&failure))));
                }
                None => {}
            }
        }
    }

    /// Charges the tenant for the tokens generated so far, so a client that leaves early pays for them as well.
    fn spend(&mut self, index: usize, num_generated: u32) {
        let before = std::mem::replace(&mut self.spent[index], num_generated);
        if num_generated > before {
            self.tenant.spend(u64::from(num_generated - before));
        }
    }

    fn take(&mut self, index: usize, piece: Piece) {
        if !matches!(piece, Piece::Prompt(_)) {
            return self.ready.push_back((index, Output::Piece(piece)));
        }
        // The prompt's tokens go to each of its choices, and the held generations of the prompt may start.
        let siblings = index..index + self.best_of;
        self.ready.extend(siblings.clone().map(|index| (index, Output::Piece(piece.clone()))));
        for (index, generation) in self.held.extract_if(.., |(held, _)| siblings.contains(held)) {
            self.running.push(next(index, generation));
        }
    }

    /// Records an error, which may occur after the head of the response has been sent.
    fn refused(&self, error: ApiError) -> ApiError {
        self.journal.refuse(&error);
        error
    }

    /// Records that the response is cut because the client does not read.
    pub fn stall(&self) {
        self.journal.end(BodyEnd::Stalled);
    }

    /// Adds up a choice's counts. A prompt counts once, however many choices it has.
    fn count(&mut self, index: usize, End { counts, reason, .. }: End) {
        self.journal.finish(reason);
        let counts = if index.is_multiple_of(self.best_of) { counts } else { Counts { prompt: 0, cached: 0, ..counts } };
        self.usage = self.usage.plus(counts);
    }

    /// Waits for every choice and returns them in order.
    pub async fn collect(mut self) -> Result<(Vec<Answer>, Counts), ApiError> {
        let mut answers = vec![Answer::default(); self.num_prompts * self.best_of];
        while let Some(next) = self.next().await {
            let (index, output) = next?;
            answers[index].ids.append(&mut self.take_ids(index));
            match output {
                Output::Piece(piece) => answers[index].add(piece),
                Output::End(end) => (answers[index].reason, answers[index].stop) = (end.reason, end.stop),
            }
        }
        let best = answers.chunks(self.best_of).flat_map(|candidates| best(candidates, self.num_choices)).collect();
        Ok((best, self.usage))
    }
}

impl Answer {
    pub fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Prompt(tokens) => self.prompt = tokens,
            Piece::Text(mut piece) => {
                self.shown.text.push_str(&piece.text);
                self.shown.tokens.append(&mut piece.tokens);
            }
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::CallStart { name, .. } => self.calls.push(FunctionCall { name, ..FunctionCall::default() }),
            Piece::Arguments { text, .. } => self.calls.iter_mut().last().into_iter().for_each(|call| call.arguments.push_str(&text)),
        }
    }

    fn mean_logprob(&self) -> f64 {
        let tokens = &self.shown.tokens;
        let sum: f64 = tokens.iter().filter_map(|token| token.logprob).map(f64::from).sum();
        if tokens.is_empty() { f64::NEG_INFINITY } else { sum / tokens.len() as f64 }
    }
}

/// The `count` answers with the greatest log-probability per token, the best first. If all are requested, the order is unchanged.
fn best(candidates: &[Answer], count: usize) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    if count < candidates.len() {
        order.sort_by(|&a, &b| candidates[b].mean_logprob().total_cmp(&candidates[a].mean_logprob()));
    }
    order.truncate(count);
    order.into_iter().map(|index| candidates[index].clone()).collect()
}

impl Drop for Choices {
    fn drop(&mut self) {
        if !self.complete && !self.journal.is_overdue() {
            metrics::http().disconnects.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |&logprob| TokenLogprob { bytes: Vec::new(), offset: 0, logprob: Some(logprob), top: Vec::new(), id: 0 };
        Answer { shown: Text { text: text.into(), tokens: logprobs.iter().map(token).collect() }, ..Answer::default() }
    }

    #[test]
    fn the_best_answers_are_the_likeliest_per_token() {
        let all = [answer("long", &[-0.5, -0.5, -0.5]), answer("empty", &[]), answer("short", &[-1.0]), answer("like long", &[-0.5])];
        let texts = |count| best(&all, count).into_iter().map(|answer| answer.shown.text).collect::<Vec<_>>();
        assert_eq!(texts(1), ["long"]);
        assert_eq!(texts(3), ["long", "like long", "short"]);
        assert_eq!(texts(4), ["long", "empty", "short", "like long"], "nothing is left out, so the order stays");
    }
}
