//! Sampling values that a model's entry sets.

use serde::{Deserialize, Serialize};

/// The values to sample with if a request does not choose its own. None: this entry leaves the value open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
}

impl Sampling {
    /// Checks the ranges, which are those of a request's fields.
    pub(super) fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: Option<f32>, least: f32, most: f32| match value {
            Some(value) if !(least..=most).contains(&value) => Err(format!("sampling.{name} is {value}, not between {least} and {most}")),
            _ => Ok(()),
        };
        within("temperature", self.temperature, 0.0, 2.0)?;
        within("top_p", self.top_p, f32::MIN_POSITIVE, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        within("repetition_penalty", self.repetition_penalty, f32::MIN_POSITIVE, 10.0)
    }
}
