//! Computes log-probabilities under the model's own distribution, before penalties, bias and masks.

use crate::filter::{argmax, largest, log_mass};

/// The largest number of top tokens that a request may ask for at each position.
pub const MAX_LOGPROBS: usize = 20;

/// Natural logarithms of token probabilities under a row of raw logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The log-probability of the chosen token.
    pub chosen: f32,
    /// The likeliest tokens in descending order. Among equals, the lower id comes first. Impossible tokens have -inf.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// The log-probabilities of `chosen` and of the `n` likeliest tokens (fewer if the vocabulary is smaller). None if the row is not a
    /// distribution: it holds a NaN, a +inf or no finite logit.
    pub fn new(logits: &[f32], chosen: u32, n: usize) -> Option<Self> {
        let (_, max) = argmax(logits)?;
        let norm = log_mass(logits, max);
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - norm) as f32;
        let chosen = logprob(*logits.get(chosen as usize)?);
        let top = if n == 0 { Vec::new() } else { largest(logits, n) };
        Some(Self { chosen, top: top.into_iter().map(|id| (id, logprob(logits[id as usize]))).collect() })
    }
}
