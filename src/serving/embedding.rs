//! Turns texts into vectors. A ranking model turns a pair of texts into a vector, too: the scores of its classes.

use std::sync::Arc;

use super::adapters::{adapter_names, track};
use super::error::{ContextLimit, Failure, RequestError, SubmitError};
use super::ledger::Account;
use super::model::Model;
use super::options::Budget;
use super::prompt::{Prompt, encode};
use super::request::{budget, check_most};
use super::text::beginning;
use logits::SamplingParams;
use scheduler::{Client, Event, EventStream, Items, NewSequence};

/// A text that its model can embed, or a pair of texts that it can rank.
pub struct ValidText {
    model: Arc<Model>,
    sequence: NewSequence,
}

/// A vector that is being computed. Dropping it cancels the sequence.
pub struct Pooled {
    /// Keeps the model loaded.
    _model: Arc<Model>,
    events: EventStream,
}

/// Encodes and checks a text. Takes up to a second per megabyte: call it off the event loop.
pub fn validate(model: Arc<Model>, prompt: &Prompt, cache_salt: u64) -> Result<ValidText, RequestError> {
    let pool = Some(model.base.pooling.ok_or_else(|| RequestError::NoEmbedding(model.id.clone()))?);
    let ids = encode(&model, prompt)?;
    ValidText::new(model, ids.into(), NewSequence { pool, cache_salt, ..NewSequence::new(Items::default(), SamplingParams::greedy(), 0) })
}

/// Like [`validate`], but cuts the prompt to `most` tokens and to the context. Without `most`, a prompt that is too long is refused.
pub fn validate_within(model: &Arc<Model>, prompt: &Prompt, most: Option<usize>, cache_salt: u64) -> Result<ValidText, RequestError> {
    let whole = validate(model.clone(), prompt, cache_salt);
    let Some(most) = most else { return whole };
    check_most(most, ContextLimit::of(model))?;
    match &whole {
        Ok(text) if text.num_tokens() as usize <= most => return whole,
        Err(error) if !error.is_too_long() => return whole,
        _ => {}
    }
    let ids = match prompt {
        Prompt::Text(text) => beginning(model, text, most),
        Prompt::Ids(ids) => ids[..ids.len().min(most).min(model.context())].to_vec(),
        Prompt::Chat(_) | Prompt::Infill { .. } => return whole,
    };
    validate(model.clone(), &Prompt::Ids(ids), cache_salt)
}

impl ValidText {
    /// Checks a prompt's length. `sequence`: the sequence to run, without its prompt.
    pub(super) fn new(model: Arc<Model>, prompt: Items, sequence: NewSequence) -> Result<Self, RequestError> {
        let max_tokens = budget(prompt.len(), ContextLimit::of(&model), Budget::Strict(sequence.max_tokens))?;
        let prompt = if model.base.spec.arch.bidirectional { prompt.whole() } else { prompt };
        let adapters = model.adapter_requests(&[(0, prompt.tokens())]);
        Ok(Self { model, sequence: NewSequence { prompt, max_tokens, adapters, ..sequence } })
    }

    pub fn num_tokens(&self) -> u32 {
        self.sequence.prompt.len() as u32
    }
}

/// Submits the texts of one client's request to their model's engine thread, all or none. They share the engine with other requests as one.
pub fn submit(texts: Vec<ValidText>, client: Client) -> Result<Vec<Pooled>, SubmitError> {
    let Some(model) = texts.first().map(|text| text.model.clone()) else { return Ok(Vec::new()) };
    let mut place = model.base.handle.request(client, texts.iter().map(|text| text.sequence.prompt.len()))?;
    let start = |text: ValidText| {
        let names = adapter_names(&text.model.adapters, &text.sequence.adapters);
        let pooled = Pooled { events: place.enqueue(text.sequence)?, _model: text.model };
        track(names, pooled.events.progress());
        Ok(pooled)
    };
    texts.into_iter().map(start).collect()
}

impl Pooled {
    /// The account of the text.
    pub fn account(&self) -> Account {
        Account::of(self.events.progress())
    }

    /// The text's pooled hidden states. `dimensions`: how many leading elements to keep. `normalize`: scale the vector to length 1.
    pub async fn vector(self, dimensions: Option<usize>, normalize: bool) -> Result<Vec<f32>, Failure> {
        let mut vector = self.pooled().await?;
        vector.truncate(dimensions.unwrap_or(vector.len()));
        Ok(if normalize { normalized(vector) } else { vector })
    }

    /// The log-probability of the first token after the text.
    pub(super) async fn first_logprob(mut self) -> Result<f32, Failure> {
        let problem = match self.events.next().await {
            Some(Event::Token { logprobs: Some(logprobs), .. }) => return Ok(logprobs.chosen),
            Some(Event::Failed(message) | Event::Unfollowable(message)) => message,
            _ => "the logits are not finite".into(),
        };
        Err(Failure::new(problem, self.events.is_engine_alive()))
    }

    /// The engine's vector of the text, as it is.
    pub(super) async fn pooled(mut self) -> Result<Vec<f32>, Failure> {
        loop {
            let problem = match self.events.next().await {
                Some(Event::Pooled(vector)) => return Ok(vector),
                Some(Event::Token { .. } | Event::Scored(_)) => continue,
                Some(Event::Failed(message) | Event::Unfollowable(message)) => message,
                Some(Event::Finished { .. }) | None => "the engine gave no vector".into(),
            };
            return Err(Failure::new(problem, self.events.is_engine_alive()));
        }
    }
}

/// Scales a vector to Euclidean length 1. A vector of zeros stays as it is.
fn normalized(mut vector: Vec<f32>) -> Vec<f32> {
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
    fn a_vector_has_length_one() {
        assert_eq!(normalized(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normalized(vec![0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(normalized(vec![1e30, 0.0]), [1.0, 0.0]);
    }
}
