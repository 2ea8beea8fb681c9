//! Drafts from the model's own draft head (multi-token prediction), which the engine runs between steps (`engine::Engine::draft`).
//!
//! A guess costs time even if it is not run, unlike a lookup. So the head is asked for as many tokens as are likely to be worth their time,
//! and for none while a lookup promises more. While nothing is worth it, one token is asked for now and then, to see whether that changes.

use super::acceptance::AcceptanceRates;
use super::drafter::{Drafter, DrafterKind, History};
use super::step_cost::StepCost;

/// Number of tokens without a guess after which one token is asked for, whatever it is worth.
const PROBE_AFTER: usize = 32;

/// A drafter whose guesses are brought to it.
#[derive(Debug, Default)]
pub struct Heads {
    brought: Vec<u32>,
}

impl Drafter for Heads {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Heads
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

/// The number of tokens to ask the head for, at most `most`. `rates`: those of its guesses. `cost`: a step without drafts, whose rows cost
/// what verifying and guessing a token does. `num_idle`: number of tokens since the last guess.
pub fn num_to_ask(rates: &AcceptanceRates, mut cost: StepCost, most: usize, num_idle: usize) -> usize {
    let mut probability = 1.0;
    let is_worth_it = |&depth: &usize| {
        probability *= rates.of(depth);
        cost.add(probability)
    };
    let num = (0..most).take_while(is_worth_it).count();
    num.max(usize::from(num_idle >= PROBE_AFTER)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_is_asked_for_what_is_worth_it_and_now_and_then() {
        let (mut good, mut bad) = (AcceptanceRates::by_depth(), AcceptanceRates::by_depth());
        (0..60).for_each(|i| (0..16).for_each(|depth| good.record(depth, i % 8 > 0)));
        (0..60).for_each(|_| bad.record(0, false));
        let asked = |rates: &AcceptanceRates, row_cost, num_idle| num_to_ask(rates, StepCost::new(1, row_cost), 16, num_idle);
        assert!(asked(&good, 0.1, 0) > asked(&good, 0.3, 0) && asked(&good, 0.3, 0) > 0);
        assert_eq!([0, PROBE_AFTER].map(|num_idle| asked(&bad, 0.2, num_idle)), [0, 1]);
        assert_eq!(num_to_ask(&good, StepCost::new(1, 0.1), 2, 0), 2);
        assert_eq!(num_to_ask(&bad, StepCost::new(1, 0.1), 0, PROBE_AFTER), 0, "there is no room for a draft");
    }
}
