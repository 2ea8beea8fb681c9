//! Guesses that cost time: those of the model's draft head, which the engine runs between steps (`engine::Engine::draft`), and those of a
//! draft model (`draft_model.rs`).
//!
//! Such a guess costs time even if it is not run, unlike a lookup. So a drafter is asked for as many tokens as are likely to be worth their
//! time, and for none while a lookup promises more. While nothing is worth it, one token is asked for now and then, to see whether that
//! changes. A draft head reads along at no cost. A draft model must first read all tokens since its last guess, so an account of each
//! sequence bounds the time that may be lost: what guesses took, less what they saved.

use super::acceptance::AcceptanceRates;
use super::drafter::{Drafter, DrafterKind, History};
use super::step_cost::StepCost;

/// Number of tokens without a guess after which a head is asked for one token, whatever it is worth.
const PROBE_AFTER: usize = 32;
/// The time that guesses of a draft model may lose, in steps without rows, and the share of a sequence's time that they may lose besides.
const MOST_LOST: f64 = 3.0;
const MOST_SHARE: f64 = 0.01;
/// The most rows of a step besides drafts while a draft model is asked without promise, since rows of many sequences are dear.
const FEW_ROWS: usize = 4;
/// The share of the remaining time that reading a prompt may take. A guess saves about as much.
const READING_SHARE: f64 = 0.2;

/// The time that guesses take, in units of a step's time without rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuessCost {
    pub kind: DrafterKind,
    /// Time of a pass, which guesses a token for each sequence.
    pub pass: f64,
    /// Time of a token that a pass reads.
    pub row: f64,
}

/// A sequence before the next step.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// Rows of the step besides drafts.
    pub num_rows: usize,
    /// The most drafts that it may run.
    pub most: usize,
    /// Number of tokens that the drafter must read before it guesses.
    pub num_unread: usize,
    /// The most tokens that the sequence may still get.
    pub num_left: usize,
}

/// A drafter whose guesses are brought to it.
#[derive(Debug)]
pub struct Asked {
    pub kind: DrafterKind,
    brought: Vec<u32>,
}

impl Asked {
    pub fn new(kind: DrafterKind) -> Self {
        Self { kind, brought: Vec::new() }
    }
}

impl Drafter for Asked {
    fn kind(&self) -> DrafterKind {
        self.kind
    }

    fn bring(&mut self, guess: Vec<u32>) {
        self.brought = guess;
    }

    /// The support of a guess is its depth alone.
    fn propose(&mut self, _history: History<'_>, most: usize, out: &mut Vec<u32>) -> usize {
        out.extend(self.brought.drain(..).take(most));
        0
    }
}

/// What the guesses of a sequence have cost and saved.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    /// Time of a row of a step.
    row: f64,
    guess: GuessCost,
    /// Time that guesses took, less what they saved.
    lost: f64,
    /// Number of tokens since the last guess.
    num_idle: usize,
    num_tokens: usize,
    has_guessed: bool,
}

impl Account {
    pub fn new(row: f64, guess: GuessCost) -> Self {
        Self { row, guess, lost: 0.0, num_idle: 0, num_tokens: 0, has_guessed: false }
    }

    /// The number of tokens to ask for. `rates`: those of the drafter's guesses.
    pub fn num_to_ask(&self, rates: &AcceptanceRates, asking: Asking) -> usize {
        let Asking { num_rows, most, num_unread, num_left } = asking;
        let (one, reading) = (1.0 + self.row, num_unread.saturating_sub(1) as f64 * self.guess.row);
        // What a sequence reads before its first guess is not on its account, but must be worth it.
        let is_too_long = !self.has_guessed && reading > READING_SHARE * num_left as f64 * one;
        if is_too_long {
            return 0;
        }
        // a pass is for all sequences
        let token = self.guess.pass / num_rows.max(1) as f64 + self.guess.row;
        let (mut cost, mut probability) = (StepCost::new(num_rows, self.row).with_guesses(token), 1.0);
        let is_worth_it = |&depth: &usize| {
            probability *= rates.of(depth);
            cost.add(probability)
        };
        let num = (0..most).take_while(is_worth_it).count();
        let may_probe = match self.guess.kind {
            DrafterKind::Model => {
                let owed = if self.has_guessed { reading } else { 0.0 };
                num_rows <= FEW_ROWS && self.lost + token + owed <= MOST_LOST + MOST_SHARE * self.num_tokens as f64 * one
            }
            _ => self.num_idle >= PROBE_AFTER,
        };
        num.max(usize::from(may_probe)).min(most)
    }

    /// Counts new tokens.
    pub fn pass_time(&mut self, num_new: usize) {
        self.num_idle += num_new;
        self.num_tokens += num_new;
    }

    /// Counts a guess of `num` tokens.
    pub fn spend(&mut self, num: usize) {
        let num_read = if self.has_guessed { self.num_idle } else { 1 };
        self.add(num as f64 * self.guess.pass + (num + num_read - 1) as f64 * self.guess.row);
        (self.num_idle, self.has_guessed) = (0, true);
    }

    /// Counts drafts that a step verified: their number, and that of the right ones.
    pub fn settle(&mut self, (num, num_right): (usize, usize)) {
        self.add(num as f64 * self.row - num_right as f64 * (1.0 + self.row));
    }

    fn add(&mut self, time: f64) {
        self.lost = (self.lost + time).max(-MOST_LOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKING: Asking = Asking { num_rows: 1, most: 16, num_unread: 1, num_left: 1000 };

    fn account(kind: DrafterKind, pass: f64, row: f64) -> Account {
        Account::new(0.1, GuessCost { kind, pass, row })
    }

    fn rates(is_right: impl Fn(usize) -> bool) -> AcceptanceRates {
        let mut rates = AcceptanceRates::by_depth();
        (0..60).for_each(|i| (0..16).for_each(|depth| rates.record(depth, is_right(i))));
        rates
    }

    #[test]
    fn a_head_is_asked_for_what_is_worth_it_and_now_and_then() {
        let (good, bad) = (rates(|i| i % 8 > 0), rates(|_| false));
        let asked = |rates: &AcceptanceRates, pass, num_idle| {
            let mut head = account(DrafterKind::Heads, pass, 0.0);
            head.pass_time(num_idle);
            head.num_to_ask(rates, ASKING)
        };
        assert!(asked(&good, 0.02, 0) > asked(&good, 0.3, 0) && asked(&good, 0.3, 0) > 0);
        assert_eq!([0, PROBE_AFTER].map(|num_idle| asked(&bad, 0.1, num_idle)), [0, 1]);
        let head = account(DrafterKind::Heads, 0.02, 0.0);
        assert_eq!(head.num_to_ask(&good, Asking { most: 2, ..ASKING }), 2);
        assert_eq!(head.num_to_ask(&good, Asking { most: 0, ..ASKING }), 0, "there is no room for a draft");
        assert_eq!(head.num_to_ask(&good, Asking { num_rows: 64, ..ASKING }), 0, "rows of many sequences cost more");
    }

    #[test]
    fn a_draft_model_that_is_wrong_loses_little() {
        let (bad, mut model) = (rates(|_| false), account(DrafterKind::Model, 0.3, 0.05));
        let (mut lost, mut num_unread, mut asked_late) = (0.0, 1, 0);
        for at in 0..2000 {
            if model.num_to_ask(&bad, Asking { num_unread, ..ASKING }) > 0 {
                lost += 0.3 + 0.05 * num_unread as f64 + 0.1;
                model.spend(1);
                model.settle((1, 0));
                (num_unread, asked_late) = (0, at);
            }
            model.pass_time(1);
            num_unread += 1;
        }
        assert!(lost > 2.0 && lost < MOST_LOST + 1.0 + 0.01 * 2000.0 * 1.1, "{lost}");
        assert!(asked_late < 200, "reading on costs more than may be lost, at {asked_late}");
    }

    #[test]
    fn a_draft_model_that_is_right_earns_patience() {
        let (good, bad, mut model) = (rates(|_| true), rates(|_| false), account(DrafterKind::Model, 0.3, 0.05));
        assert!(model.num_to_ask(&good, ASKING) > 1);
        let tries = |model: &Account| {
            let mut model = *model;
            (0..100)
                .take_while(|_| {
                    let is_asked = model.num_to_ask(&bad, ASKING) > 0;
                    model.spend(1);
                    is_asked
                })
                .count()
        };
        let before = tries(&model);
        for _ in 0..10 {
            model.spend(2);
            model.settle((2, 2));
            model.pass_time(3);
        }
        assert!(tries(&model) > before && before > 3, "{before}");
    }

    #[test]
    fn a_prompt_that_its_answer_cannot_repay_is_not_read() {
        let (good, model) = (rates(|_| true), account(DrafterKind::Model, 0.3, 0.05));
        let asked = |num_unread, num_left| model.num_to_ask(&good, Asking { num_unread, num_left, ..ASKING }) > 0;
        assert_eq!([asked(100, 100), asked(4000, 100), asked(4000, 2000)], [true, false, true]);
    }
}
