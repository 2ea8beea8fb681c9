//! Sampling from logits: filters, penalties and counter-based random numbers keyed by seed and position.

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
