//! A closed loop of requests through the scheduler, without HTTP. A fixed number run at once, each with its own prompt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::logits::SamplingParams;
use metrics::ModelMetrics;
use scheduler::{DraftOptions, Engines, Event, Handle, KnownAnswer, NewSequence, SchedulerOptions};

/// Time that the engine thread may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The fewest requests per measurement.
const FEWEST_REQUESTS: u32 = 16;
/// Tokens of an answer in the warm-up.
const WARM_TOKENS: u32 = 16;

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Requests per measurement. `None`: four times as many as run at once, at least [`FEWEST_REQUESTS`].
    pub requests: Option<u32>,
    pub prompt: u32,
    pub generate: u32,
    pub seed: u64,
    /// The most rows per step.
    pub step_tokens: usize,
    /// Whether answers are drafted.
    pub drafts: Option<Drafts>,
}

/// How answers are drafted.
#[derive(Clone, Copy, Debug)]
pub struct Drafts {
    /// Draft from the answer itself, which is generated beforehand. Each token is right with this probability. `None`: from n-grams.
    pub accept: Option<f64>,
    /// The most drafts per step.
    pub most: Option<u32>,
}

/// One measurement.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Loaded {
    /// Number of requests that run or wait at any time.
    pub at_once: u32,
    pub requests: u32,
    pub seconds: f64,
    pub output_tokens_per_second: f64,
    /// Tokens of prompts and answers.
    pub total_tokens_per_second: f64,
    pub requests_per_second: f64,
    /// Tokens of drafts that steps verified, and those that were right.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafted_tokens: Option<[u64; 2]>,
    pub first_token_milliseconds: Percentiles,
    /// Between the tokens of a request.
    pub between_tokens_milliseconds: Percentiles,
    pub request_milliseconds: Percentiles,
}

#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

impl Percentiles {
    /// The percentiles of `seconds` [ms].
    fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        // the smallest value that this share of all values does not exceed
        let at = |share: f64| {
            let rank = (share * seconds.len() as f64).ceil() as usize;
            seconds.get(rank.saturating_sub(1)).copied().unwrap_or(0.0) * 1e3
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// The times of requests [s].
#[derive(Debug, Default)]
struct Times {
    first: Vec<f64>,
    gaps: Vec<f64>,
    whole: Vec<f64>,
    num_tokens: u64,
    drafts: [u64; 2],
}

impl Times {
    fn add(&mut self, other: Self) {
        self.first.extend(other.first);
        self.gaps.extend(other.gaps);
        self.whole.extend(other.whole);
        self.num_tokens += other.num_tokens;
        self.drafts = [0, 1].map(|i| self.drafts[i] + other.drafts[i]);
    }
}

/// Runs the loop once per number of concurrent requests. Consumes the engines.
pub fn run(engines: Engines, plan: Plan, at_once: &[u32]) -> anyhow::Result<Vec<Loaded>> {
    let engine = &engines.engine;
    let most = at_once.iter().copied().max().unwrap_or(1);
    let vocab = engine.spec().vocab_size as u32;
    ensure!(vocab > 0, "the model has no vocabulary");
    let options = SchedulerOptions {
        max_batch_tokens: plan.step_tokens,
        max_running: engine.max_slots(),
        // A request may take at most an eighth of the queue.
        max_waiting: 16 * most as usize + 64,
        max_waiting_tokens: (16 * most as usize + 64).saturating_mul(plan.prompt as usize + 1),
        // Answers that were generated beforehand must not make their prompts faster.
        prefix_cache: plan.drafts.is_none_or(|drafts| drafts.accept.is_none()),
        drafts: plan.drafts.is_some(),
    };
    let handle = Handle::spawn_on(engines, options, ModelMetrics::for_model("bench"), None, (None, None));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async {
        // Warm-up: a device's first steps are slower.
        let warm =
            Plan { drafts: None, requests: Some(most), generate: plan.generate.min(WARM_TOKENS), seed: plan.seed ^ u64::MAX, ..plan };
        Level { handle: handle.clone(), plan: warm, vocab, at_once: most, index: 0, answers: Vec::new() }.run().await?;
        let mut measured = Vec::new();
        for (index, &at_once) in at_once.iter().enumerate() {
            measured
                .push(Level { handle: handle.clone(), plan, vocab, at_once, index: index as u64 + 1, answers: Vec::new() }.run().await?);
        }
        anyhow::Ok(measured)
    });
    handle.stop();
    ensure!(handle.wait_ended(PATIENCE), "the engine thread does not end");
    measured
}

/// A closed loop with one number of concurrent requests.
struct Level {
    handle: Handle,
    plan: Plan,
    vocab: u32,
    at_once: u32,
    /// Makes the prompts of two levels differ.
    index: u64,
    /// The answer to each request. Empty unless drafts come from them.
    answers: Vec<Arc<[u32]>>,
}

impl Level {
    fn requests(&self) -> u32 {
        self.plan.requests.unwrap_or((4 * self.at_once).max(FEWEST_REQUESTS))
    }

    async fn run(self) -> anyhow::Result<Loaded> {
        let level = Arc::new(Self { answers: self.answers().await?, ..self });
        let next = Arc::new(AtomicUsize::new(0));
        let (start, mut clients) = (Instant::now(), tokio::task::JoinSet::new());
        for _ in 0..level.at_once.min(level.requests()) {
            let (level, next) = (level.clone(), next.clone());
            clients.spawn(async move { level.client(&next).await });
        }
        let mut times = Times::default();
        while let Some(client) = clients.join_next().await {
            times.add(client.context("a client ended unexpectedly")??);
        }
        let seconds = start.elapsed().as_secs_f64();
        let requests = level.requests();
        let prompts = u64::from(requests) * u64::from(level.plan.prompt);
        Ok(Loaded {
            at_once: level.at_once,
            requests,
            seconds,
            output_tokens_per_second: times.num_tokens as f64 / seconds,
            total_tokens_per_second: (times.num_tokens + prompts) as f64 / seconds,
            requests_per_second: f64::from(requests) / seconds,
            drafted_tokens: level.plan.drafts.map(|_| times.drafts),
            first_token_milliseconds: Percentiles::of(times.first),
            between_tokens_milliseconds: Percentiles::of(times.gaps),
            request_milliseconds: Percentiles::of(times.whole),
        })
    }

    /// Sends one request after the other until all are sent.
    async fn client(&self, next: &AtomicUsize) -> anyhow::Result<Times> {
        let mut times = Times::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests() as usize {
                return Ok(times);
            }
            times.add(self.request(number as u64).await?);
        }
    }

    fn sequence(&self, number: u64) -> NewSequence {
        let prompt = prompt(self.plan.seed, self.index << 32 | number, self.plan.prompt, self.vocab);
        NewSequence::new(prompt, SamplingParams::greedy(), self.plan.generate)
    }

    /// The answers to all requests, if drafts come from them.
    async fn answers(&self) -> anyhow::Result<Vec<Arc<[u32]>>> {
        let mut answers = Vec::new();
        if self.plan.drafts.is_none_or(|drafts| drafts.accept.is_none()) {
            return Ok(answers);
        }
        for number in 0..u64::from(self.requests()) {
            let drafts = DraftOptions { most: Some(0), ..DraftOptions::default() };
            let mut events = self.handle.enqueue(NewSequence { drafts, ..self.sequence(number) })?;
            let mut tokens = Vec::new();
            while let Some(event) = events.next().await {
                tokens.extend(if let Event::Token { id, .. } = event { Some(id) } else { None });
            }
            answers.push(tokens.into());
        }
        Ok(answers)
    }

    async fn request(&self, number: u64) -> anyhow::Result<Times> {
        let mut drafts = DraftOptions { most: self.plan.drafts.map_or(Some(0), |drafts| drafts.most), ..DraftOptions::default() };
        if let (Some(tokens), Some(accept)) = (self.answers.get(number as usize), self.plan.drafts.and_then(|drafts| drafts.accept)) {
            drafts.known = Some(KnownAnswer { tokens: tokens.clone(), accept });
        }
        let (start, mut times) = (Instant::now(), Times::default());
        let mut events = self.handle.enqueue(NewSequence { drafts, ..self.sequence(number) })?;
        let mut last = None;
        while let Some(event) = events.next().await {
            match event {
                Event::Token { .. } => {
                    let now = Instant::now();
                    match last.replace(now) {
                        None => times.first.push((now - start).as_secs_f64()),
                        Some(last) => times.gaps.push((now - last).as_secs_f64()),
                    }
                    times.num_tokens += 1;
                }
                Event::Failed(why) | Event::Unfollowable(why) => bail!("request {number} failed: {why}"),
                Event::Finished { .. } | Event::Scored(_) | Event::Pooled(_) => {}
            }
        }
        ensure!(
            times.num_tokens == u64::from(self.plan.generate),
            "request {number} got {} of {} tokens",
            times.num_tokens,
            self.plan.generate
        );
        times.whole.push(start.elapsed().as_secs_f64());
        let drafts = events.progress().drafts();
        times.drafts = [drafts.drafted, drafts.accepted].map(u64::from);
        Ok(times)
    }
}

/// Random ids within the vocabulary. Two prompts share a prefix only by chance.
fn prompt(seed: u64, number: u64, length: u32, vocab: u32) -> Vec<u32> {
    let mut state = mixed(seed ^ mixed(number));
    let next = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed(state)) * u128::from(vocab)) >> 64) as u32
    };
    (0..length).map(next).collect()
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of `x`.
fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_reproducible_and_share_no_beginning() {
        let first = prompt(7, 1, 64, 1000);
        assert_eq!(first, prompt(7, 1, 64, 1000));
        assert!(first.iter().all(|&id| id < 1000) && first.iter().collect::<std::collections::HashSet<_>>().len() > 40);
        let begins: std::collections::HashSet<Vec<u32>> =
            (0..2000).flat_map(|number| [7, 8].map(|seed| prompt(seed, number, 8, 1000))).collect();
        assert_eq!(begins.len(), 4000);
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let Percentiles { p50, p90, p99, max } = Percentiles::of((1..=100).rev().map(|n| f64::from(n) / 1e3).collect());
        assert_eq!([p50, p90, p99, max].map(f64::round), [50.0, 90.0, 99.0, 100.0]);
        let one = Percentiles::of(vec![0.25]);
        assert_eq!((one.p50, one.p99), (250.0, 250.0));
        assert_eq!(Percentiles::of(Vec::new()).max, 0.0);
    }
}
