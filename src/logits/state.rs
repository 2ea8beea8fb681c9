//! [`SamplingState`]: chooses the tokens of a sequence one by one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::filter::{self, Filters};
use crate::mask::forbid;
use crate::params::SamplingParams;
use crate::rng;

/// The sampling state of a sequence: how often each id occurred, and how many tokens were generated.
#[derive(Clone, Debug)]
pub struct SamplingState {
    params: Arc<SamplingParams>,
    /// How often each id was generated. 0 for ids that occur only in the prompt. Empty if all penalties are off.
    counts: HashMap<u32, u32>,
    num_generated: u32,
}

impl SamplingState {
    /// The state of a sequence that has already generated `generated`. It equals the state after sampling those tokens here.
    pub fn new(params: Arc<SamplingParams>, prompt: &[u32], generated: &[u32]) -> Self {
        let mut counts = HashMap::new();
        if params.repetition_penalty != 1.0 {
            counts.extend(prompt.iter().map(|&id| (id, 0)));
        }
        let mut state = Self { params, counts, num_generated: 0 };
        for &id in generated {
            state.record(id);
        }
        state
    }

    /// The number of tokens sampled so far, including those before a preemption.
    pub fn num_generated(&self) -> u32 {
        self.num_generated
    }

    /// Chooses the next token from one row of logits and records it. Overwrites `logits`. `mask` says which ids are allowed, in
    /// [`mask_words`](crate::mask_words) words.
    ///
    /// Returns None and records nothing if an allowed logit is NaN or +inf, or if no allowed logit is finite.
    pub fn sample(&mut self, logits: &mut [f32], mask: Option<&[u32]>) -> Option<u32> {
        self.adjust(logits)?;
        if let Some(mask) = mask {
            forbid(logits, mask);
        }
        let (best, max) = filter::argmax(logits)?;
        let params = &*self.params;
        let id = if params.temperature == 0.0 {
            best
        } else {
            let u = rng::uniform(params.seed, self.num_generated);
            let filters =
                Filters { temperature: params.temperature, top_k: params.top_k as usize, top_p: params.top_p, min_p: params.min_p };
            if filters.is_neutral(logits.len()) {
                filter::draw_all(logits, max, params.temperature, u)
            } else {
                filter::draw(&filters.survivors(logits, max), u)?
            }
        };
        self.record(id);
        Some(id)
    }

    fn record(&mut self, id: u32) {
        self.num_generated += 1;
        if self.params.has_penalties() {
            *self.counts.entry(id).or_insert(0) += 1;
        }
    }

    /// Applies penalties, bias and suppression. The map's order does not matter, because each entry changes a different logit. None if the
    /// logit of a suppressed id is NaN.
    pub(crate) fn adjust(&self, logits: &mut [f32]) -> Option<()> {
        let params = &*self.params;
        for (&id, &count) in &self.counts {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            if params.repetition_penalty != 1.0 && logit.is_finite() {
                let penalised = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
                // A tiny penalty makes the quotient overflow. The token is then very likely, and the row is not broken.
                *logit = penalised.clamp(f32::MIN, f32::MAX);
            }
            if count > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * count as f32;
            }
        }
        for &(id, bias) in &params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if self.num_generated < params.min_tokens {
            for &id in &params.suppressed {
                let Some(logit) = logits.get_mut(id as usize) else { continue };
                // Overwriting a NaN would hide a broken row.
                if logit.is_nan() {
                    return None;
                }
                *logit = f32::NEG_INFINITY;
            }
        }
        Some(())
    }
}
