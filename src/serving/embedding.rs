//! Texts that become vectors.

use std::sync::Arc;

use super::request::{Budget, Prompt, RequestError, budget, check_ids, encode, most_counted, vocab_size};
use super::{SubmitError, ValidRequest};
use crate::logits::SamplingParams;
use crate::registry::LoadedModel;
use crate::scheduler::{Event, EventStream, NewSequence};

/// A vector on its way. Dropping it cancels the sequence.
pub struct Embedding {
    model: Arc<LoadedModel>,
    events: EventStream,
}

/// Encodes and checks a text; off the event loop.
pub fn validate(model: Arc<LoadedModel>, prompt: Prompt, tenant: u64) -> Result<ValidRequest, RequestError> {
    let pool = Some(model.pooling.ok_or_else(|| RequestError::NoEmbedding(model.id.clone()))?);
    let prompt = encode(&model, prompt, most_counted(&model))?;
    check_ids("input", prompt.iter().copied(), vocab_size(&model))?;
    let max_tokens = budget(prompt.len(), model.context, Budget::Explicit(0))?;
    let sequence = NewSequence { pool, cache_salt: tenant, ..NewSequence::new(prompt, SamplingParams::greedy(), max_tokens) };
    Ok(ValidRequest { model, sequence, stop: Vec::new(), echo: String::new(), parser: None, again: None, rules: "input" })
}

/// Hands a text that was validated here to its model's engine thread.
pub fn embed(request: ValidRequest) -> Result<Embedding, SubmitError> {
    let ValidRequest { model, sequence, .. } = request;
    Ok(Embedding { events: model.handle.enqueue(sequence)?, model })
}

impl Embedding {
    /// The pooled rows, of length 1; with `dimensions` the first ones alone.
    ///
    /// # Errors
    /// Why there is none, and whether the engine still runs.
    pub async fn vector(mut self, dimensions: Option<usize>) -> Result<Vec<f32>, (String, bool)> {
        loop {
            match self.events.next().await {
                Some(Event::Pooled(mut vector)) => {
                    vector.truncate(dimensions.unwrap_or(vector.len()));
                    return Ok(normalised(vector));
                }
                Some(Event::Failed(message) | Event::Unfollowable(message)) => return Err((message, self.model.handle.is_alive())),
                Some(Event::Token { .. } | Event::Scored(_)) => {}
                Some(Event::Finished { .. }) | None => return Err(("the engine gave no vector".into(), self.model.handle.is_alive())),
            }
        }
    }
}

/// Of Euclidean length 1; one of zeros stays.
fn normalised(mut vector: Vec<f32>) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one() {
        assert_eq!(normalised(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalised(vec![0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(normalised(vec![1e30, 0.0]), [1.0, 0.0]);
    }
}
