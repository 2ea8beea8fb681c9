//! Scores pairs of texts: with a ranking model, by the vectors of an embedding model, or by asking a generative model.

use std::collections::HashMap;
use std::sync::Arc;

use super::document_truncation::Truncation;
use super::embedding::{self, Pooled, ValidText};
use super::error::{Failure, RequestError, SubmitError};
use super::judge;
use super::ledger::Ledger;
use super::model::Model;
use super::prompt::Prompt;
use super::rank;
use scheduler::Client;

/// How a model compares texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScoringMethod {
    /// A classifier reads both texts.
    Ranks,
    /// The cosine of the texts' vectors.
    Embeds,
    /// A generative model answers "yes" or "no".
    Judges,
}

impl ScoringMethod {
    fn of(model: &Model) -> Result<Self, RequestError> {
        match (&model.base.ranking, &model.template) {
            (Some(_), _) => Ok(Self::Ranks),
            (None, _) if model.base.embeds => Ok(Self::Embeds),
            (None, Some(_)) => Ok(Self::Judges),
            (None, None) => Err(RequestError::NoRanking(model.id.clone())),
        }
    }
}

/// Validated pairs of texts.
pub struct ValidPairs {
    method: ScoringMethod,
    texts: Vec<ValidText>,
    /// The indices of each pair's texts. Both are equal if the pair is one text.
    pairs: Vec<[usize; 2]>,
}

/// Encodes and checks pairs. Takes up to a second per megabyte: call it off the event loop.
pub fn validate(model: &Arc<Model>, pairs: &[(&str, &str)], cut: Truncation, cache_salt: u64) -> Result<ValidPairs, RequestError> {
    let method = ScoringMethod::of(model)?;
    let (mut texts, mut indices, mut known) = (Vec::new(), Vec::with_capacity(pairs.len()), HashMap::new());
    for &(query, document) in pairs {
        let at = texts.len();
        match method {
            ScoringMethod::Ranks => {
                texts.extend(
                    cut.fit(model, document, |document| rank::validate(model.clone(), query, document, cache_salt).map(|text| [text]))?,
                );
                indices.push([at, at]);
            }
            ScoringMethod::Judges => {
                texts.extend(cut.fit(model, document, |document| judge::questions(model, query, document, cache_salt))?);
                indices.push([at, at + 1]);
            }
            ScoringMethod::Embeds => {
                // The model reads each text separately. The document's limit does not apply to the query.
                let mut index = |text, cut: Truncation| match known.get(&(text, cut)) {
                    Some(at) => Ok::<usize, RequestError>(*at),
                    None => {
                        let encode =
                            |text: &str| embedding::validate(model.clone(), &Prompt::Text(text.to_owned()), cache_salt).map(|text| [text]);
                        texts.extend(cut.fit(model, text, encode)?);
                        known.insert((text, cut), texts.len() - 1);
                        Ok(texts.len() - 1)
                    }
                };
                indices.push([index(query, Truncation { document: None, ..cut })?, index(document, cut)?]);
            }
        }
    }
    Ok(ValidPairs { method, texts, pairs: indices })
}

impl ValidPairs {
    /// Submits the pairs to their model's engine thread, all or none.
    pub fn submit(self, client: Client) -> Result<Scoring, SubmitError> {
        Ok(Scoring { method: self.method, running: embedding::submit(self.texts, client)?, pairs: self.pairs })
    }
}

/// Scores that are being computed. Dropping them cancels their sequences.
pub struct Scoring {
    method: ScoringMethod,
    running: Vec<Pooled>,
    pairs: Vec<[usize; 2]>,
}

impl Scoring {
    /// Enters the account of each sequence. The prompt of a question that is asked twice counts once.
    pub fn enter(&self, ledger: &Ledger) {
        let is_second = |index: usize| self.method == ScoringMethod::Judges && index % 2 == 1;
        self.running.iter().enumerate().for_each(|(index, running)| ledger.enter(&running.account(), is_second(index)));
    }

    /// The score of each pair. `activated`: whether to return probabilities instead of raw scores. A cosine is the same in both cases.
    pub async fn scores(self, activated: bool) -> Result<Vec<f32>, Failure> {
        let mut found: Vec<Vec<f32>> = Vec::with_capacity(self.running.len());
        for running in self.running {
            found.push(match self.method {
                ScoringMethod::Ranks => running.pooled().await?,
                ScoringMethod::Embeds => running.vector(None, true).await?,
                ScoringMethod::Judges => vec![running.first_logprob().await?],
            });
        }
        let score = |[one, other]: [usize; 2]| match self.method {
            ScoringMethod::Ranks if activated => rank::probability(&found[one]),
            ScoringMethod::Ranks => rank::logit(&found[one]),
            ScoringMethod::Embeds => cosine(&found[one], &found[other]),
            ScoringMethod::Judges => {
                let odds = found[one][0] - found[other][0];
                if activated { rank::probability(&[odds]) } else { odds }
            }
        };
        Ok(self.pairs.iter().map(|pair| score(*pair)).collect())
    }
}

/// The cosine of two vectors of length 1.
fn cosine(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cosine_tells_how_alike_directions_are() {
        assert_eq!((cosine(&[0.6, 0.8], &[0.6, 0.8]), cosine(&[1.0, 0.0], &[0.0, 1.0])), (1.0, 0.0));
    }
}
