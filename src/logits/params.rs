//! [`SamplingParams`]: how the tokens of a sequence are chosen.

use serde::{Deserialize, Serialize};

/// How the tokens of a sequence are chosen. The default draws from the model's own distribution, with every filter and penalty off.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 always takes the token with the largest logit.
    pub temperature: f32,
    /// 0 switches the filter off.
    pub top_k: u32,
    /// 1 switches the filter off.
    pub top_p: f32,
    /// 0 switches the filter off.
    pub min_p: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    /// 1 switches the penalty off.
    pub repetition_penalty: f32,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: u64,
    /// The number of generated tokens before which no id of `suppressed` may be sampled.
    pub min_tokens: u32,
    /// The stop ids.
    pub suppressed: Vec<u32>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
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
}

/// The values that a request, a configuration or a model's file chooses. None leaves a value to other sources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingChoice {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl SamplingChoice {
    /// Takes these values, and fills each open one from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            presence_penalty: self.presence_penalty.or(other.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(other.frequency_penalty),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            seed: self.seed.or(other.seed),
        }
    }

    /// These values with all penalties switched off.
    pub fn without_penalties(self) -> Self {
        Self { presence_penalty: Some(0.0), frequency_penalty: Some(0.0), repetition_penalty: Some(1.0), ..self }
    }

    /// Replaces the values of `params` that are chosen here.
    pub fn applied_to(self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(params.temperature),
            top_k: self.top_k.unwrap_or(params.top_k),
            top_p: self.top_p.unwrap_or(params.top_p),
            min_p: self.min_p.unwrap_or(params.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(params.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(params.frequency_penalty),
            repetition_penalty: self.repetition_penalty.unwrap_or(params.repetition_penalty),
            seed: self.seed.unwrap_or(params.seed),
            ..params
        }
    }
}

impl SamplingParams {
    /// Always takes the likeliest token, with every filter and penalty off.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}
