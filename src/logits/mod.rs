//! Sampling from logits: filters, penalties and counter-based random numbers keyed by seed and position.
//!
//! The order, which is vLLM's for the part that changes what is drawn: repetition penalty, presence and frequency penalties,
//! logit bias, suppression of ids before `min_tokens`, a grammar's mask; then temperature, min-p, top-k, top-p; then the draw.

mod constraint;
pub mod filter;
mod logprobs;
pub mod rng;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

pub use constraint::{Allowed, Constraint, Grammar};
use filter::Filters;
pub use logprobs::{Logprobs, MAX_LOGPROBS};

/// How a sequence's tokens are chosen. Neutral values switch a filter off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// Ids that may not be sampled before `min_tokens` were generated (the stop ids).
    pub min_tokens: u32,
    pub suppressed: Vec<u32>,
}

impl SamplingParams {
    /// The likeliest token each time, nothing switched on.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            min_tokens: 0,
            suppressed: Vec::new(),
        }
    }

    fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Words of a mask: bit `id % 32` of word `id / 32` says whether the id is allowed.
pub fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// Takes what a mask forbids out of the running. A NaN stays: writing over it would hide that the row is broken. Without branches on
/// single bits, which no processor predicts.
fn forbid(logits: &mut [f32], mask: &[u32]) {
    const BITS: [u32; 32] = {
        let mut bits = [0; 32];
        let mut at = 0;
        while at < 32 {
            bits[at] = 1 << at;
            at += 1;
        }
        bits
    };
    for (&word, ids) in mask.iter().zip(logits.chunks_mut(32)).filter(|(word, _)| **word != u32::MAX) {
        for (logit, bit) in ids.iter_mut().zip(BITS) {
            let stays = (word & bit != 0) | logit.is_nan();
            *logit = if stays { *logit } else { f32::NEG_INFINITY };
        }
    }
}

/// What a slot must remember between its tokens: how often each id came up, and how many were generated.
#[derive(Clone, Debug)]
pub struct SlotState {
    params: Arc<SamplingParams>,
    /// Times an id was generated; 0 for those in the prompt only. Empty where no penalty asks.
    counts: HashMap<u32, u32>,
    num_generated: u32,
}

impl SlotState {
    /// The state of a sequence that has `generated` so far: the same as if those had been sampled here.
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

    /// Tokens sampled so far, those before a preemption included.
    pub fn num_generated(&self) -> u32 {
        self.num_generated
    }

    /// Chooses and records the next token from one row of logits, which it destroys, among those that `mask` ([`mask_words`] long)
    /// allows. None: they hold a NaN or +inf, or nothing that is finite is left; nothing is recorded then.
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

    /// Penalties, bias, suppression. Each touches an id of its own, so that the map's order does not matter.
    fn adjust(&self, logits: &mut [f32]) -> Option<()> {
        let params = &*self.params;
        for (&id, &count) in &self.counts {
            let Some(logit) = logits.get_mut(id as usize) else { continue };
            if params.repetition_penalty != 1.0 && logit.is_finite() {
                let penalised = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
                // A tiny penalty overflows: that is a very likely token, not a broken row.
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
                // Writing over a NaN would hide that the row is broken.
                if logit.is_nan() {
                    return None;
                }
                *logit = f32::NEG_INFINITY;
            }
        }
        Some(())
    }
}
