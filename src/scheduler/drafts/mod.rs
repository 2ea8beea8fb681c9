//! Drafts: guesses of a sequence's next tokens, which a step verifies as further rows.
//!
//! A decode step runs a sequence's last token and its drafts as consecutive rows, each of which is sampled. The engine samples a row only
//! if all drafts before it were right (`engine::Batch`), so the tokens are those of a step per token, with the same bits. `plan.rs` adds
//! the rows, `commit.rs` takes the tokens.
//!
//! Each drafter guesses after every token, even if no drafts are run, and the tokens that come then say how good its guesses are. So the
//! number of drafts adapts to the text (`acceptance.rs`), and to the step (`step_cost.rs`). The draft head of a model and a draft model
//! guess when they are asked (`asked.rs`), since their guesses cost time.

mod acceptance;
mod asked;
pub mod draft_model;
mod drafter;
mod guess_request;
mod known;
mod ngram;
mod prediction;
mod step_cost;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use acceptance::AcceptanceRates;
use asked::{Account, Asked};
use drafter::Drafter;
use ngram::Ngram;
use prediction::Prediction;

pub use asked::{Asking, GuessCost};
pub use drafter::{DrafterKind, History};
pub use guess_request::GuessRequest;
pub use known::KnownAnswer;
pub use step_cost::StepCost;

/// The most drafts of a sequence in a step.
pub const MAX_DRAFTS: usize = 16;
/// A guess that takes longer is slow. A lookup takes a few microseconds.
const SLOW: Duration = Duration::from_millis(2);
/// A drafter with so many slow guesses is dropped.
const MAX_SLOW: u32 = 3;

/// What a request says about drafts.
#[derive(Clone, Debug)]
pub struct DraftOptions {
    /// The answer that the client expects.
    pub prediction: Option<Arc<[u32]>>,
    /// The most drafts per step. None: the scheduler's own bound.
    pub most: Option<u32>,
    /// Fewer drafts than this are not run.
    pub fewest: u32,
    /// A draft ends before a token that is less likely to be accepted than this, by the sequence's own experience.
    pub least_probability: f32,
    /// A continuation that is known beforehand, for measurements. It replaces all other drafters.
    pub known: Option<KnownAnswer>,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { prediction: None, most: None, fewest: 0, least_probability: 0.0, known: None }
    }
}

/// A drafter with its latest guess and its record.
#[derive(Debug)]
struct Source {
    drafter: Box<dyn Drafter>,
    rates: AcceptanceRates,
    guess: Vec<u32>,
    support: usize,
    num_slow: u32,
}

impl Source {
    fn new(drafter: impl Drafter + 'static) -> Self {
        Self { drafter: Box::new(drafter), rates: AcceptanceRates::default(), guess: Vec::new(), support: 0, num_slow: 0 }
    }

    /// The probability that the token at `index` of the guess is accepted, if those before it were.
    fn rate(&self, index: usize) -> f64 {
        self.rates.of(self.support.saturating_add(index))
    }

    /// Compares the guess with the tokens that came.
    fn learn(&mut self, tokens: &[u32]) {
        for (index, (guessed, came)) in self.guess.iter().zip(tokens).enumerate() {
            self.rates.record(self.support.saturating_add(index), guessed == came);
            if guessed != came {
                break;
            }
        }
    }

    /// Guesses again. False if the drafter is of no more use, because it panicked or is slow.
    fn guess(&mut self, history: History<'_>, most: usize) -> bool {
        self.guess.clear();
        let start = Instant::now();
        let proposed = catch_unwind(AssertUnwindSafe(|| self.drafter.propose(history, most, &mut self.guess)));
        self.num_slow += u32::from(start.elapsed() > SLOW);
        self.guess.truncate(most);
        self.support = proposed.as_ref().copied().unwrap_or(0);
        if proposed.is_err() || self.num_slow >= MAX_SLOW {
            let why = if proposed.is_err() { "panicked" } else { "is slow" };
            tracing::warn!("the drafter {:?} {why}: its sequence goes on without it", self.drafter.kind());
            return false;
        }
        true
    }
}

/// The time that drafts take on an engine, in units of a step's time without rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftCost {
    /// Time of a row.
    pub row: f64,
    /// Time of guesses that a drafter is asked for. None: there is no such drafter.
    pub guess: Option<GuessCost>,
}

/// The drafters of a sequence, and its drafts in flight.
#[derive(Debug, Default)]
pub struct Drafts {
    sources: Vec<Source>,
    /// The guesses that the scheduler asks for and brings, and what they cost.
    asked: Option<(Source, Account)>,
    /// The drafts that a step in flight verifies, and their origin.
    in_flight: Vec<u32>,
    kind: Option<DrafterKind>,
    cost: DraftCost,
    most: usize,
    fewest: usize,
    least_probability: f64,
}

impl Drafts {
    /// The drafters of a sequence with these options.
    pub fn new(options: &DraftOptions, cost: DraftCost) -> Self {
        let (mut sources, mut asked) = (Vec::new(), None);
        match &options.known {
            Some(known) => sources.push(Source::new(known.clone())),
            None => {
                sources.extend(options.prediction.clone().map(|tokens| Source::new(Prediction::new(tokens))));
                sources.push(Source::new(Ngram::default()));
                asked = cost.guess.map(|guess| {
                    let rates =
                        if guess.kind == DrafterKind::Model { AcceptanceRates::at_any_depth() } else { AcceptanceRates::by_depth() };
                    (Source { rates, ..Source::new(Asked::new(guess.kind)) }, Account::new(cost.row, guess))
                });
            }
        }
        Self {
            sources,
            asked,
            cost,
            most: options.most.map_or(MAX_DRAFTS, |most| MAX_DRAFTS.min(most as usize)),
            fewest: options.fewest as usize,
            least_probability: options.least_probability.into(),
            ..Self::default()
        }
    }

    /// The drafts that a step in flight verifies.
    pub fn in_flight(&self) -> &[u32] {
        &self.in_flight
    }

    /// Takes note of the number of drafts that a step verified, and of those that were right.
    pub fn settle(&mut self, counts: (usize, usize)) {
        if let Some((_, account)) = self.asked.as_mut().filter(|(source, _)| self.kind == Some(source.drafter.kind())) {
            account.settle(counts);
        }
    }

    /// Forgets the drafts in flight. Returns their origin.
    pub fn land(&mut self) -> Option<DrafterKind> {
        self.in_flight.clear();
        self.kind.take()
    }

    /// Takes in the last `num_new` tokens of `history` and guesses at most `most` tokens that follow.
    pub fn guess(&mut self, history: History<'_>, num_new: usize, most: usize) {
        if self.most == 0 {
            return;
        }
        let new = &history.generated[history.generated.len() - num_new..];
        self.sources.retain_mut(|source| {
            source.learn(new);
            source.guess(history, most)
        });
        if let Some((source, account)) = &mut self.asked {
            account.pass_time(num_new);
            source.learn(new);
            source.guess.clear();
        }
    }

    /// Whether the draft head or the draft model may be asked at all.
    pub fn may_ask(&self) -> bool {
        self.asked.is_some() && self.most > 0
    }

    /// The number of tokens to ask the draft head or the draft model for.
    pub fn num_to_ask(&self, asking: Asking) -> usize {
        let Some((source, account)) = &self.asked else { return 0 };
        if self.best().is_some_and(|known| known.rate(0) >= source.rate(0)) {
            return 0;
        }
        account.num_to_ask(&source.rates, Asking { most: asking.most.min(self.most), ..asking })
    }

    /// Takes the guess that was asked for, of the tokens that follow `history`.
    pub fn bring(&mut self, history: History<'_>, guess: Vec<u32>) {
        if let Some((source, account)) = &mut self.asked {
            account.spend(guess.len());
            source.drafter.bring(guess);
            source.guess(history, MAX_DRAFTS);
        }
    }

    /// The source whose guess is the likeliest to be right.
    fn best(&self) -> Option<&Source> {
        // The first of equal ones.
        let all = self.asked.iter().map(|(source, _)| source).chain(self.sources.iter().rev());
        all.filter(|source| !source.guess.is_empty()).max_by(|a, b| a.rate(0).total_cmp(&b.rate(0)))
    }

    /// The drafts that a step of this sequence alone would verify, for those who prepare them.
    pub fn expected(&self) -> &[u32] {
        let num = self.num_worth(0, MAX_DRAFTS, &mut StepCost::new(1, self.cost.row)).0;
        self.best().map_or(&[], |source| &source.guess[..num])
    }

    /// The number of drafts to run, at most `most`, and the number of them that will probably be accepted. `skip`: number of tokens that
    /// are sampled but not known, which come before the drafts.
    fn num_worth(&self, skip: usize, most: usize, cost: &mut StepCost) -> (usize, f64) {
        let Some(source) = self.best() else { return (0, 0.0) };
        let most = source.guess.len().saturating_sub(skip).min(most).min(self.most);
        let (mut probability, mut num, mut expected) = ((0..skip).map(|index| source.rate(index)).product::<f64>(), 0, 0.0);
        let before = *cost;
        while num < most && source.rate(skip + num) >= self.least_probability {
            probability *= source.rate(skip + num);
            if !cost.add(probability) {
                break;
            }
            (num, expected) = (num + 1, expected + probability);
        }
        if num < self.fewest {
            *cost = before;
            return (0, 0.0);
        }
        (num, expected)
    }

    /// Sends off at most `most` drafts, as many as are worth their time. `least_gain`: the number of drafts that must probably be
    /// accepted.
    pub fn send(&mut self, skip: usize, most: usize, least_gain: f64, cost: &mut StepCost) -> &[u32] {
        debug_assert!(self.in_flight.is_empty(), "drafts are in flight already");
        let before = *cost;
        let (num, expected) = self.num_worth(skip, most, cost);
        if num == 0 || expected < least_gain {
            *cost = before;
            return &[];
        }
        if let Some((guess, kind)) = self.best().map(|source| (source.guess[skip..skip + num].to_vec(), source.drafter.kind())) {
            (self.in_flight, self.kind) = (guess, Some(kind));
        }
        &self.in_flight
    }
}

#[cfg(test)]
#[path = "drafts_tests.rs"]
mod tests;
