//! The generations behind one response. Each is a choice, and their outputs are read as they arrive.

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

/// Texts up to this length are checked where they are: a text that is tokenized by another thread costs two switches of threads, which
/// take longer. In bytes.
const CHECK_INLINE: usize = 512;

/// A generation that has yielded an output.
struct NextOutput {
    index: usize,
    generation: Generation,
    output: Option<Result<Output, Failure>>,
}

/// What to generate.
pub struct GenerationRequest {
    pub model: Arc<Model>,
    pub prompts: Vec<Prompt>,
    pub options: Options,
    /// Choices per prompt.
    pub num_choices: usize,
    /// Texts per prompt, of which the likeliest become its choices. With more texts than choices, the response cannot be streamed.
    pub best_of: usize,
    /// By which errors name the request's fields.
    pub names: FieldNames,
    /// The memory that is held for the request.
    pub held: Arc<MemoryPermit>,
    /// Who asks.
    pub tenant: Tenant,
    pub journal: Rc<Journal>,
}

/// A whole choice.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The prompt's tokens, if they were requested.
    pub prompt: Vec<TokenLogprob>,
    pub shown: Text,
    pub reasoning: String,
    pub calls: Vec<FunctionCall>,
    pub reason: EndReason,
    /// What the request named that ended it.
    pub stop: Option<StopCause>,
    /// Its tokens, if they were requested.
    pub ids: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

/// How far a prompt is, in tokens. `processed` includes `cached`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    pub total: u32,
    pub cached: u32,
    pub processed: u32,
}

/// The running generations of a response. Dropping it cancels them.
pub struct Choices {
    running: FuturesUnordered<LocalBoxFuture<'static, NextOutput>>,
    /// Generations that wait until the first of their prompt has returned the prompt's tokens.
    held: Vec<(usize, Generation)>,
    /// Outputs that were not handed out yet.
    ready: VecDeque<(usize, Output)>,
    /// Each prompt as text. Empty unless the request wants to see them.
    echoes: Vec<String>,
    num_prompts: usize,
    num_choices: usize,
    best_of: usize,
    names: FieldNames,
    usage: Counts,
    /// The token ids of each prompt. Empty unless the request wants them.
    prompt_ids: Vec<Vec<u32>>,
    /// Token ids of each generation that were not taken yet, if the request wants them.
    ids: Vec<Vec<u32>>,
    /// The tokens of all prompts.
    num_prompt: u32,
    /// Generated tokens of each generation that were counted against the tenant's rate.
    spent: Vec<u32>,
    /// What the first generation has cost.
    account: Option<RequestUsage>,
    tenant: Tenant,
    journal: Rc<Journal>,
    /// Completes when the request has taken too long.
    overdue: Fuse<LocalBoxFuture<'static, ApiError>>,
    active: ActiveGeneration,
    complete: bool,
    /// The memory of a conversation that the generations may need again.
    _held: Option<Arc<MemoryPermit>>,
}

/// Checks every prompt, then hands all of them to the engine or none.
pub async fn start(state: web::Data<AppState>, ask: GenerationRequest) -> Result<Choices, ApiError> {
    let GenerationRequest { model, prompts, mut options, num_choices, best_of, names, held, tenant, journal } = ask;
    let active = ActiveGeneration::new(state);
    (options.cache_salt, options.client) = (tenant.salt(options.cache_salt), tenant.client());
    if best_of > num_choices {
        // They tell which texts are the likeliest.
        options.logprobs = options.logprobs.or(Some(0));
    }
    let return_ids = options.return_ids;
    let scores_prompts = options.prompt_logprobs.is_some() || options.echo && options.logprobs.is_some();
    let echo = options.echo;
    let has_tools = prompts.iter().any(|prompt| matches!(prompt, Prompt::Chat(chat) if chat.tools.is_some()));
    let is_quick = options.format.is_none() && matches!(&prompts[..], [Prompt::Text(text)] if text.len() <= CHECK_INLINE);
    let valid = move || {
        let valid = prompts.into_iter().map(|prompt| ValidRequest::new(model.clone(), prompt, &options)).collect::<Result<Vec<_>, _>>();
        // This thread holds the memory until here, even if the client has gone.
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
    pub fn len(&self) -> usize {
        self.num_prompts * self.num_choices
    }

    /// Each choice's prompt. Empty unless the request wants to see them.
    pub fn echoes(&self) -> Vec<String> {
        self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo.clone(), self.num_choices)).collect()
    }

    /// How far the first prompt is. None once it has been computed.
    pub fn prompt_progress(&self) -> Option<PromptProgress> {
        let account = self.account.as_ref().filter(|account| account.prefilled().is_none())?;
        let (total, cached, processed) = (account.prompt_tokens(), account.cached_tokens(), account.computed_tokens());
        Some(PromptProgress { total, cached, processed })
    }

    /// The token ids of each choice's prompt. Empty unless the request wants them.
    pub fn prompt_ids(&self) -> Vec<Vec<u32>> {
        self.prompt_ids.iter().flat_map(|ids| std::iter::repeat_n(ids.clone(), self.num_choices)).collect()
    }

    /// The ids of a choice since the last call. Empty unless the request wants them.
    pub fn take_ids(&mut self, index: usize) -> Vec<u32> {
        std::mem::take(&mut self.ids[index])
    }

    /// The counts of all choices so far.
    pub fn usage_so_far(&self) -> Counts {
        Counts { prompt: self.num_prompt, generated: self.spent.iter().sum(), ..self.usage }
    }

    /// The sum over the choices that have ended.
    pub fn usage(&self) -> Counts {
        self.usage
    }

    /// The counts of the prompts, for a stream that tells them before its first piece. Tokens found in the cache are known once the
    /// prompts have their turn.
    pub fn begun(&self) -> Counts {
        let cached = u32::try_from(self.journal.cached_tokens()).unwrap_or(u32::MAX);
        Counts { prompt: self.num_prompt, cached: cached.min(self.num_prompt), ..Counts::default() }
    }

    /// What a choice yields next, with the choice's index. `None` once every choice has ended. Cancel safe.
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

    /// Counts what a generation has generated so far, so that a client that leaves early has spent it too.
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
        // A prompt's tokens go to each of its choices. The others may run now.
        let siblings = index..index + self.best_of;
        self.ready.extend(siblings.clone().map(|index| (index, Output::Piece(piece.clone()))));
        for (index, generation) in self.held.extract_if(.., |(held, _)| siblings.contains(held)) {
            self.running.push(next(index, generation));
        }
    }

    /// An error may come after the head of the answer has been sent.
    fn refused(&self, error: ApiError) -> ApiError {
        self.journal.refuse(&error);
        error
    }

    /// The client does not read, so that its answer is cut.
    pub fn stall(&self) {
        self.journal.end(BodyEnd::Stalled);
    }

    /// A prompt counts once, however many choices it has.
    fn count(&mut self, index: usize, End { counts, reason, .. }: End) {
        self.journal.finish(reason);
        let counts = if index.is_multiple_of(self.best_of) { counts } else { Counts { prompt: 0, cached: 0, ..counts } };
        self.usage = self.usage.plus(counts);
    }

    /// Every choice, in order.
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

/// The `count` answers with the greatest log-probability per token, the best first. If all are wanted, their order stays.
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
