//! Log-probabilities: what the model made of a row, before anything was adjusted or forbidden.

use super::filter::{argmax, largest, log_mass};

/// The most likely tokens that a row may ask for.
pub const MAX_LOGPROBS: usize = 20;

/// Natural logarithms of probabilities under a row's raw logits.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The likeliest tokens in descending order, among equals the lower id first. Those that are impossible have -inf.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of `chosen` and of the `n` likeliest (fewer where the vocabulary is smaller). None: the row is no distribution, since it holds a
    /// NaN or +inf or nothing that is finite.
    pub fn new(logits: &[f32], chosen: u32, n: usize) -> Option<Self> {
        let (_, max) = argmax(logits)?;
        let norm = log_mass(logits, max);
        let logprob = |logit: f32| (f64::from(logit) - f64::from(max) - norm) as f32;
        let chosen = logprob(*logits.get(chosen as usize)?);
        let top = if n == 0 { Vec::new() } else { largest(logits, n) };
        Some(Self { chosen, top: top.into_iter().map(|id| (id, logprob(logits[id as usize]))).collect() })
    }
}
