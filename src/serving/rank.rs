//! How well texts answer a query: the scores of pairs, by a model that ranks.

use std::sync::Arc;

use anyhow::ensure;

use super::embedding::{Pooled, ValidText};
use super::error::{Failure, RequestError};
use super::model::Model;
use super::prompt::{checked, most_counted};
use gguf::GgufFile;
use logits::SamplingParams;
use scheduler::{NewSequence, Pooling};
use tokenizer::Tokenizer;

/// The key of the template by which some models (Qwen3-Reranker) see a pair.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";
const PLACES: [&str; 2] = ["{query}", "{document}"];

/// How a model sees a query and a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// None: the two texts and the vocabulary's special tokens around them.
    template: Option<String>,
}

impl Ranking {
    /// # Errors
    /// The file's template is malformed.
    pub(super) fn of(file: &GgufFile) -> anyhow::Result<Self> {
        let template = file.get_str(TEMPLATE);
        if let Some(text) = template {
            for place in PLACES {
                ensure!(text.contains(place), "{TEMPLATE} has no {place}");
            }
        }
        Ok(Self { template: template.map(str::to_owned) })
    }
}

/// Encodes and checks a pair. Takes up to a second per megabyte: call it off the event loop. Submit it with [`super::embedding::submit`].
pub fn validate(model: Arc<Model>, query: &str, document: &str, tenant: u64) -> Result<ValidText, RequestError> {
    let Some(ranking) = &model.base.ranking else { return Err(RequestError::NoRanking(model.id.clone())) };
    let (tokenizer, most) = (&model.base.tokenizer, most_counted(&model));
    let (ids, second) = match &ranking.template {
        Some(template) => (tokenizer.encode_rendered(&filled(template, tokenizer, [query, document]), most), None),
        None => tokenizer.encode_pair(query, document, most).map_or((None, None), |pair| (Some(pair.ids), Some(pair.second))),
    };
    let ids = checked(&model, ids)?;
    let second_segment = second.filter(|_| model.base.spec.num_token_types > 1);
    let sequence = NewSequence {
        pool: Some(Pooling::Rank),
        second_segment,
        cache_salt: tenant,
        ..NewSequence::new(Vec::new(), SamplingParams::greedy(), 0)
    };
    ValidText::new(model, ids, sequence)
}

/// The template with the texts in their places. Texts of control tokens in them stay text.
fn filled(template: &str, tokenizer: &Tokenizer, texts: [&str; 2]) -> String {
    let mut out = String::with_capacity(template.len() + texts[0].len() + texts[1].len());
    let mut rest = template;
    let next = |rest: &str| (0..2).filter_map(|i| Some((rest.find(PLACES[i])?, i))).min();
    while let Some((at, i)) = next(rest) {
        out.push_str(&rest[..at]);
        out.push_str(&tokenizer.shield(texts[i]));
        rest = &rest[at + PLACES[i].len()..];
    }
    out + rest
}

impl Pooled {
    /// The score of a pair: the logit of a classifier with one class, or else the probability of the first class ("yes").
    pub async fn score(self) -> Result<f32, Failure> {
        Ok(score(&self.pooled().await?))
    }
}

fn score(classes: &[f32]) -> f32 {
    match classes {
        [one] => *one,
        all => {
            let most = all.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exp = |x: &f32| f64::from(x - most).exp();
            (all.first().map_or(0.0, exp) / all.iter().map(exp).sum::<f64>().max(1.0)) as f32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_a_logit_or_the_probability_of_the_first_class() {
        assert_eq!((score(&[-3.5]), score(&[1.0, 1.0]), score(&[])), (-3.5, 0.5, 0.0));
        assert!((score(&[2.0, 0.0]) - 0.880_797).abs() < 1e-6 && score(&[1e9, 0.0]) == 1.0);
    }
}
