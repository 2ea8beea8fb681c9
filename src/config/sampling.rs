//! Checks the sampling values that a model's entry sets.

use logits::SamplingChoice;

/// Checks the ranges, which are the same as for a request's fields.
pub(super) fn check_sampling(sampling: &SamplingChoice) -> Result<(), String> {
    let within = |name: &str, value: Option<f32>, least: f32, most: f32| match value {
        Some(value) if !(least..=most).contains(&value) => Err(format!("sampling.{name} is {value}, not between {least} and {most}")),
        _ => Ok(()),
    };
    within("temperature", sampling.temperature, 0.0, 2.0)?;
    within("top_p", sampling.top_p, f32::MIN_POSITIVE, 1.0)?;
    within("min_p", sampling.min_p, 0.0, 1.0)?;
    within("presence_penalty", sampling.presence_penalty, -2.0, 2.0)?;
    within("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)?;
    within("repetition_penalty", sampling.repetition_penalty, f32::MIN_POSITIVE, 10.0)
}
