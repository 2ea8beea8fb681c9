//! The generations behind one response: each is a choice, and they are read as they come.

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
use crate::serving::{self, Counts, FinishReason, Generation, Options, Output, Prompt, ValidRequest};

type Next = LocalBoxFuture<'static, (usize, Generation, Option<Output>)>;

/// What a choice yields.
#[derive(Debug, PartialEq)]
pub enum Part {
    Text(usize, String),
    Finished(usize, &'static str),
}

/// The running generations of a response. Dropping it cancels them.
pub struct Choices {
    running: FuturesUnordered<Next>,
    num_choices: usize,
    usage: Usage,
    active: Active,
    complete: bool,
}

/// Checks every prompt, then hands all to the engine or none; `source` is the field that holds them. Returns the choices and the
/// prompts' ids.
pub async fn start(
    state: web::Data<AppState>,
    model: Arc<LoadedModel>,
    prompts: Vec<Prompt>,
    options: Options,
    source: &'static str,
) -> Result<(Choices, Vec<Vec<u32>>), ApiError> {
    let active = Active::new(state);
    let valid = move || prompts.into_iter().map(|prompt| ValidRequest::new(model.clone(), prompt, &options)).collect::<Result<Vec<_>, _>>();
    let requests = off_loop(valid).await?.map_err(|error| request_error(error, source))?;
    let ids = requests.iter().map(|request| request.prompt().to_vec()).collect();
    let generations = requests.into_iter().map(serving::submit).collect::<Result<Vec<_>, _>>()?;
    let num_choices = generations.len();
    let running = generations.into_iter().enumerate().map(|(index, generation)| next(index, generation)).collect();
    Ok((Choices { running, num_choices, usage: Usage::default(), active, complete: false }, ids))
}

fn next(index: usize, mut generation: Generation) -> Next {
    Box::pin(async move {
        let output = generation.next().await;
        (index, generation, output)
    })
}

pub fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn usage(counts: Counts) -> Usage {
    Usage::new(counts.prompt, counts.cached, counts.generated)
}

impl Choices {
    pub fn len(&self) -> usize {
        self.num_choices
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
            let ready = tokio::select! {
                ready = self.running.next() => ready,
                () = self.active.state().drain.when_cut() => {
                    self.complete = true;
                    return Some(Err(ApiError::new(Kind::Draining, "the server is shutting down")));
                }
            };
            let Some((index, generation, output)) = ready else {
                self.complete = true;
                return None;
            };
            match output {
                Some(Output::Text(text)) => {
                    self.running.push(next(index, generation));
                    return Some(Ok(Part::Text(index, text)));
                }
                Some(Output::Finished(reason, counts)) => {
                    self.usage = self.usage.plus(usage(counts));
                    return Some(Ok(Part::Finished(index, finish_reason(reason))));
                }
                Some(Output::Failed(message)) => {
                    self.complete = true;
                    let kind = if generation.engine_alive() { Kind::GenerationFailed } else { Kind::EngineStopped };
                    return Some(Err(ApiError::new(kind, message)));
                }
                None => {}
            }
        }
    }

    /// Every choice's text and finish reason, in order.
    pub async fn collect(mut self) -> Result<(Vec<(String, &'static str)>, Usage), ApiError> {
        let mut answers = vec![(String::new(), ""); self.num_choices];
        while let Some(part) = self.next().await {
            match part? {
                Part::Text(index, text) => answers[index].0.push_str(&text),
                Part::Finished(index, reason) => answers[index].1 = reason,
            }
        }
        Ok((answers, self.usage))
    }
}

impl Drop for Choices {
    fn drop(&mut self) {
        if !self.complete {
            metrics::http().disconnects.inc();
        }
    }
}
