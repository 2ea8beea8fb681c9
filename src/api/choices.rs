//! The generations behind one response: each is a choice, and they are read as they come.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use actix_web::web;
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;

use super::convert::request_error;
use super::error::{ApiError, Kind};
use super::metrics;
use super::state::{Active, AppState, off_loop};
use super::types::usage::Usage;
use crate::registry::LoadedModel;
use crate::serving::{self, Counts, FinishReason, Generation, Options, Output, Prompt, Text, TokenLogprob, ValidRequest};

type Next = LocalBoxFuture<'static, (usize, Result<(Generation, Option<Output>), ApiError>)>;

/// What is to be generated.
pub struct Ask {
    pub model: Arc<LoadedModel>,
    pub prompts: Vec<Prompt>,
    pub options: Options,
    /// Choices of a prompt.
    pub num_choices: usize,
    /// Texts of a prompt, of which the likeliest are its choices; more than those cannot be streamed.
    pub best_of: usize,
    /// The field that holds the prompts.
    pub source: &'static str,
}

/// What a choice yields.
#[derive(Debug, PartialEq)]
pub enum Part {
    /// The prompt's tokens, before all else.
    Prompt(usize, Vec<TokenLogprob>),
    Text(usize, Text),
    Reasoning(usize, String),
    /// A call of a function begins; the second number is the call's.
    Call(usize, usize, String),
    /// More of that call's arguments.
    Arguments(usize, usize, String),
    Finished(usize, &'static str),
}

/// A choice as a whole.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Where they were asked for.
    pub prompt: Vec<TokenLogprob>,
    pub shown: Text,
    pub reasoning: String,
    /// Functions and their arguments.
    pub calls: Vec<(String, String)>,
    pub finish_reason: &'static str,
}

/// The running generations of a response. Dropping it cancels them.
pub struct Choices {
    running: FuturesUnordered<Next>,
    /// Those that wait until the first of their prompt has told of it.
    held: Vec<(usize, Generation)>,
    /// What has come and was not handed out.
    ready: VecDeque<Part>,
    /// Each prompt as text, where it is to be shown.
    echoes: Vec<String>,
    num_prompts: usize,
    num_choices: usize,
    best_of: usize,
    /// Choices that have called a function.
    callers: HashSet<usize>,
    usage: Usage,
    active: Active,
    complete: bool,
}

/// Checks every prompt, then hands all to the engine or none.
pub async fn start(state: web::Data<AppState>, ask: Ask) -> Result<Choices, ApiError> {
    let Ask { model, prompts, mut options, num_choices, best_of, source } = ask;
    let active = Active::new(state);
    if best_of > num_choices {
        // The likeliest are found by it.
        options.logprobs = options.logprobs.or(Some(0));
    }
    let (scores_prompts, echo) = (options.echo && options.logprobs.is_some(), options.echo);
    let valid = move || prompts.into_iter().map(|prompt| ValidRequest::new(model.clone(), prompt, &options)).collect::<Result<Vec<_>, _>>();
    let requests = off_loop(valid).await?.map_err(|error| request_error(error, source))?;
    let num_prompts = requests.len();
    let echoes = if echo { requests.iter().map(|request| request.echo().to_owned()).collect() } else { Vec::new() };
    let families = requests.into_iter().map(|request| serving::submit_many(request, best_of)).collect::<Result<Vec<_>, _>>()?;
    let (first, held): (Vec<_>, Vec<_>) =
        families.into_iter().flatten().enumerate().partition(|(index, _)| !scores_prompts || index % best_of == 0);
    let running = first.into_iter().map(|(index, generation)| next(index, generation)).collect();
    let (ready, usage) = (VecDeque::new(), Usage::default());
    Ok(Choices { running, held, ready, echoes, num_prompts, num_choices, best_of, callers: HashSet::new(), usage, active, complete: false })
}

fn next(index: usize, mut generation: Generation) -> Next {
    Box::pin(async move {
        let output = generation.next().await;
        (index, Ok((generation, output)))
    })
}

/// The one that is asked in place of one that has repeated a call.
fn again(index: usize, generation: Generation, name: String, arguments: String) -> Next {
    Box::pin(async move {
        match off_loop(move || generation.ask_again(name, arguments)).await {
            Ok(generation) => next(index, generation).await,
            Err(error) => (index, Err(error)),
        }
    })
}

pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

impl Choices {
    /// Of a response that is streamed.
    pub fn len(&self) -> usize {
        self.num_prompts * self.num_choices
    }

    /// Each choice's prompt, where it is to be shown; else empty.
    pub fn echoes(&self) -> Vec<String> {
        self.echoes.iter().flat_map(|echo| std::iter::repeat_n(echo.clone(), self.num_choices)).collect()
    }

    /// The sum over the choices that have finished.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    pub fn state(&self) -> &AppState {
        self.active.state()
    }

    /// None once every choice has finished. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<Part, ApiError>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                return Some(Ok(part));
            }
            let ready = tokio::select! {
                ready = self.running.next() => ready,
                () = self.active.state().drain.when_cut() => {
                    self.complete = true;
                    return Some(Err(ApiError::new(Kind::Draining, "the server is shutting down")));
                }
            };
            let Some((index, result)) = ready else {
                self.complete = true;
                return None;
            };
            let (generation, output) = match result {
                Ok(next) => next,
                Err(error) => {
                    self.complete = true;
                    return Some(Err(error));
                }
            };
            match output {
                Some(Output::Prompt(tokens)) => {
                    self.running.push(next(index, generation));
                    self.tell_of_prompt(index, &tokens);
                }
                Some(output @ (Output::Text(_) | Output::Reasoning(_) | Output::Call(..) | Output::Arguments(..))) => {
                    self.running.push(next(index, generation));
                    let part = self.part(index, output);
                    self.ready.extend(part);
                }
                Some(Output::Repeated(name, arguments)) => self.running.push(again(index, generation, name, arguments)),
                Some(Output::Finished(reason, counts)) => {
                    self.usage = self.usage.plus(self.usage_of(index, counts));
                    let called = reason == FinishReason::Stop && self.callers.contains(&index);
                    return Some(Ok(Part::Finished(index, if called { "tool_calls" } else { finish_reason(reason) })));
                }
                Some(Output::Failed(message)) => {
                    self.complete = true;
                    let kind = if generation.engine_alive() { Kind::GenerationFailed } else { Kind::EngineStopped };
                    return Some(Err(ApiError::new(kind, message)));
                }
                Some(Output::Unfollowable(field, message)) => {
                    self.complete = true;
                    return Some(Err(ApiError::field(field, format!("`{field}`: {message}"))));
                }
                None => {}
            }
        }
    }

    fn part(&mut self, index: usize, output: Output) -> Option<Part> {
        match output {
            Output::Text(text) => Some(Part::Text(index, text)),
            Output::Reasoning(text) => Some(Part::Reasoning(index, text)),
            Output::Call(number, name) => {
                self.callers.insert(index);
                Some(Part::Call(index, number, name))
            }
            Output::Arguments(number, text) => Some(Part::Arguments(index, number, text)),
            Output::Prompt(_) | Output::Repeated(..) | Output::Finished(..) | Output::Failed(_) | Output::Unfollowable(..) => None,
        }
    }

    /// A prompt's tokens go to each of its choices, which may come now.
    fn tell_of_prompt(&mut self, index: usize, tokens: &[TokenLogprob]) {
        self.ready.extend((index..index + self.best_of).map(|index| Part::Prompt(index, tokens.to_vec())));
        for (index, generation) in self.held.extract_if(.., |(held, _)| (index..index + self.best_of).contains(held)) {
            self.running.push(next(index, generation));
        }
    }

    /// A prompt counts once, however many choices it has.
    fn usage_of(&self, index: usize, counts: Counts) -> Usage {
        match index % self.best_of {
            0 => Usage::new(counts.prompt, counts.cached, counts.generated),
            _ => Usage::new(0, 0, counts.generated),
        }
        .with_reasoning(counts.reasoning)
    }

    /// Every choice, in order.
    pub async fn collect(mut self) -> Result<(Vec<Answer>, Usage), ApiError> {
        let mut answers = vec![Answer::default(); self.num_prompts * self.best_of];
        while let Some(part) = self.next().await {
            match part? {
                Part::Prompt(index, tokens) => answers[index].prompt = tokens,
                Part::Text(index, mut piece) => {
                    answers[index].shown.text.push_str(&piece.text);
                    answers[index].shown.tokens.append(&mut piece.tokens);
                }
                Part::Reasoning(index, text) => answers[index].reasoning.push_str(&text),
                Part::Call(index, _, name) => answers[index].calls.push((name, String::new())),
                Part::Arguments(index, _, text) => {
                    answers[index].calls.iter_mut().last().into_iter().for_each(|call| call.1.push_str(&text))
                }
                Part::Finished(index, reason) => answers[index].finish_reason = reason,
            }
        }
        let best = answers.chunks(self.best_of).flat_map(|candidates| best(candidates, self.num_choices)).collect();
        Ok((best, self.usage))
    }
}

/// The `count` answers with the greatest log-probability a token, the best first; all of them as they are where all are wanted.
fn best(candidates: &[Answer], count: usize) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    if count < candidates.len() {
        order.sort_by(|&a, &b| mean_logprob(&candidates[b]).total_cmp(&mean_logprob(&candidates[a])));
    }
    order.truncate(count);
    order.into_iter().map(|index| candidates[index].clone()).collect()
}

fn mean_logprob(answer: &Answer) -> f64 {
    let tokens = &answer.shown.tokens;
    let sum: f64 = tokens.iter().filter_map(|token| token.logprob).map(f64::from).sum();
    if tokens.is_empty() { f64::NEG_INFINITY } else { sum / tokens.len() as f64 }
}

impl Drop for Choices {
    fn drop(&mut self) {
        if !self.complete {
            metrics::http().disconnects.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str, logprobs: &[f32]) -> Answer {
        let token = |&logprob| TokenLogprob { bytes: Vec::new(), offset: 0, logprob: Some(logprob), top: Vec::new() };
        Answer { shown: Text { text: text.into(), tokens: logprobs.iter().map(token).collect() }, ..Answer::default() }
    }

    #[test]
    fn the_best_are_the_likeliest_a_token() {
        let all = [answer("long", &[-0.5, -0.5, -0.5]), answer("empty", &[]), answer("short", &[-1.0]), answer("like long", &[-0.5])];
        let texts = |count| best(&all, count).into_iter().map(|answer| answer.shown.text).collect::<Vec<_>>();
        assert_eq!(texts(1), ["long"]);
        assert_eq!(texts(3), ["long", "like long", "short"]);
        assert_eq!(texts(4), ["long", "empty", "short", "like long"], "nothing is left out: the order stays");
    }
}
