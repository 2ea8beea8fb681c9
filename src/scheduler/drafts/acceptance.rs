//! How likely a drafted token is accepted, learned from the sequence itself.
//!
//! Guesses fall into classes by their support. Each class has a rate, which moves by an eighth towards 1 when the guessed token comes and
//! towards 0 when another one comes. Guesses count whether or not they were run as drafts, so a sequence that drafts nothing learns at no
//! cost when drafts would pay, and one in free text stops at no cost.

/// The number of classes.
const CLASSES: usize = 5;
/// The first supports of the classes.
const SUPPORTS: [usize; CLASSES] = [0, 3, 5, 9, 17];
/// The rates before anything is known.
const PRIORS: [f64; CLASSES] = [0.15, 0.25, 0.4, 0.6, 0.8];
/// The first depths of the classes of a draft head, whose guesses get worse with each token.
const DEPTHS: [usize; CLASSES] = [0, 1, 2, 3, 5];
const DEPTH_PRIORS: [f64; CLASSES] = [0.7, 0.6, 0.5, 0.45, 0.4];
/// One class for a draft model, whose guesses are as good behind right ones as before.
const ANY_DEPTH: [usize; CLASSES] = [0, usize::MAX, usize::MAX, usize::MAX, usize::MAX];
/// The step of a rate towards the latest outcome.
const STEP: f64 = 0.125;

#[derive(Clone, Debug)]
pub struct AcceptanceRates {
    firsts: &'static [usize; CLASSES],
    rates: [f64; CLASSES],
}

impl Default for AcceptanceRates {
    fn default() -> Self {
        Self { firsts: &SUPPORTS, rates: PRIORS }
    }
}

impl AcceptanceRates {
    /// Rates of guesses whose support is their depth: the number of guessed tokens before them.
    pub fn by_depth() -> Self {
        Self { firsts: &DEPTHS, rates: DEPTH_PRIORS }
    }

    /// Rates of guesses that are as good at any depth. So a draft model whose first tokens are right is soon asked for more.
    pub fn at_any_depth() -> Self {
        Self { firsts: &ANY_DEPTH, rates: DEPTH_PRIORS }
    }

    /// The probability that a token is accepted that is guessed with this support.
    pub fn of(&self, support: usize) -> f64 {
        if support == usize::MAX { 1.0 } else { self.rates[self.class(support)] }
    }

    /// Records whether the guessed token came.
    pub fn record(&mut self, support: usize, is_right: bool) {
        let class = self.class(support);
        self.rates[class] += STEP * (f64::from(u8::from(is_right)) - self.rates[class]);
    }

    fn class(&self, support: usize) -> usize {
        self.firsts.iter().rposition(|&first| support >= first).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_the_outcomes_of_its_class() {
        let mut rates = AcceptanceRates::default();
        assert!(SUPPORTS.windows(2).all(|pair| rates.of(pair[0]) < rates.of(pair[1])), "more support, more trust");
        (0..40).for_each(|_| rates.record(4, true));
        (0..40).for_each(|_| rates.record(20, false));
        assert!(rates.of(3) > 0.98 && rates.of(100) < 0.02);
        assert_eq!([rates.of(2), rates.of(5), rates.of(16)], [PRIORS[0], PRIORS[2], PRIORS[3]]);
        let mut any = AcceptanceRates::at_any_depth();
        (0..40).for_each(|_| any.record(0, true));
        assert!(any.of(15) > 0.98);
    }
}
