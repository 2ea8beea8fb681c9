//! Scores how well texts answer a query, with a ranking model.

use std::sync::Arc;

use super::embedding::{Pooled, ValidText};
use super::error::{Failure, RequestError};
use super::model::Model;
use super::prompt::{checked, most_counted};
use logits::SamplingParams;
use scheduler::{Items, NewSequence, Pooling};

/// Encodes and checks a pair. Takes up to a second per megabyte: call it off the event loop. Submit it with [`super::embedding::submit`].
pub fn validate(model: Arc<Model>, query: &str, document: &str, cache_salt: u64) -> Result<ValidText, RequestError> {
    let Some(template) = &model.base.ranking else { return Err(RequestError::NoRanking(model.id.clone())) };
    let (tokenizer, most) = (&model.base.tokenizer, most_counted(&model));
    let (ids, second) = match template.filled(tokenizer, [query, document]) {
        Some(text) => (tokenizer.encode_rendered(&text, most), None),
        None => tokenizer.encode_pair(query, document, most).map_or((None, None), |pair| (Some(pair.ids), Some(pair.second))),
    };
    let ids = checked(&model, ids)?;
    let second_segment = second.filter(|_| model.base.spec.num_token_types > 1);
    let sequence = NewSequence {
        pool: Some(Pooling::Rank),
        second_segment,
        cache_salt,
        ..NewSequence::new(Items::default(), SamplingParams::greedy(), 0)
    };
    ValidText::new(model, ids.into(), sequence)
}

impl Pooled {
    /// The score of a pair: the logit if the classifier has one class, or else the probability of the first class ("yes").
    pub async fn score(self) -> Result<f32, Failure> {
        Ok(score(&self.pooled().await?))
    }
}

/// Converts the classes' scores to a probability.
pub(super) fn probability(classes: &[f32]) -> f32 {
    match classes {
        [one] => (1.0 / (1.0 + f64::from(-one).exp())) as f32,
        all => score(all),
    }
}

/// The raw score: that of the first class.
pub(super) fn logit(classes: &[f32]) -> f32 {
    classes.first().copied().unwrap_or(0.0)
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
    use super::super::embedding::submit;
    use super::super::load::RunOptions;
    use super::super::pair_template::TEMPLATE;
    use super::super::{BaseModel, ModelFile, Prompt, embedding};
    use super::*;
    use engine::{BackendKind, EngineOptions};
    use gguf::Backing;
    use scheduler::{SchedulerOptions, Watchdog};

    fn start(file: ModelFile) -> Arc<Model> {
        let options = RunOptions {
            name: "tiny".into(),
            mmproj: None,
            draft: None,
            disk: None,
            engine: EngineOptions { threads: 1, context: file.context_length(), ..EngineOptions::default() },
            scheduler: SchedulerOptions {
                max_batch_tokens: 0,
                max_running: 0,
                max_waiting: 8,
                max_waiting_tokens: 0,
                prefix_cache: true,
                drafts: true,
            },
            watchdog: Watchdog { step_timeout: std::time::Duration::from_secs(60), on_fault: |_| {} },
            share: 1.0,
            cache_idle: std::time::Duration::from_secs(300),
        };
        let base: BaseModel = file.start(engine::device(BackendKind::Cpu, 0).unwrap(), options).unwrap();
        Arc::new(Model::new("tiny", Arc::new(base), None))
    }

    fn open(builder: &gguf::GgufBuilder) -> anyhow::Result<ModelFile> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        builder.write(&path).unwrap();
        ModelFile::open(&path, Backing::Private)
    }

    fn scores(model: &Arc<Model>, pairs: &[[String; 2]]) -> Vec<f32> {
        let texts = pairs.iter().map(|[query, document]| validate(model.clone(), query, document, 0).unwrap()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        submit(texts, scheduler::Client::default()).unwrap().into_iter().map(|pair| runtime.block_on(pair.score()).unwrap()).collect()
    }

    #[test]
    fn pairs_have_the_scores_of_sentence_transformers() {
        let ranker = fixtures::architectures::embedders().into_iter().find(|model| !model.pairs().is_empty()).unwrap();
        let model = start(open(&ranker.build()).unwrap());
        let (pairs, want): (Vec<_>, Vec<f32>) = ranker.pairs().into_iter().unzip();
        let got = scores(&model, &pairs);
        assert!(got.iter().zip(&want).all(|(got, want)| (got - want).abs() < 1e-4), "{got:?} {want:?}");
        assert!(want.iter().any(|score| (score - want[0]).abs() > 0.01), "the scores tell pairs apart");
        let error = embedding::validate(model.clone(), &Prompt::Text("a".into()), 0).err().unwrap();
        assert_eq!(error, RequestError::NoEmbedding("tiny".into()));
        let long = validate(model, "a", &"water ".repeat(300), 0).err().unwrap();
        assert!(long.is_too_long(), "{long}");
    }

    #[test]
    fn a_template_of_the_file_makes_the_pair() {
        let ranker = fixtures::architectures::embedders().into_iter().find(|model| !model.pairs().is_empty()).unwrap();
        let with = |template: &str| open(&ranker.build().kv(TEMPLATE, template));
        let model = start(with("[CLS] {document} is {query}? {query} [SEP]").unwrap());
        let ids = |query: &str| validate(model.clone(), query, "{query}", 0).unwrap().num_tokens();
        let tokens = |text: &str| model.base.tokenizer.encode(text, false).len() as u32;
        assert_eq!(ids("water"), 3 + tokens("{query}") + 2 * tokens("water") + tokens("is"));
        assert_eq!(ids("[SEP]"), 3 + tokens("{query}") + 2 * tokens("[SEP]") + tokens("is"), "control tokens stay text");
        assert!(format!("{:#}", with("{query}").err().unwrap()).contains("tokenizer.chat_template.rerank has no {document}"));
        let embedder = fixtures::architectures::embedders().into_iter().find(|model| model.name == "bert-mean").unwrap();
        let error = validate(start(open(&embedder.build()).unwrap()), "a", "b", 0).err().unwrap();
        assert_eq!(error, RequestError::NoRanking("tiny".into()));
    }

    #[test]
    fn a_score_is_a_logit_or_the_probability_of_the_first_class() {
        assert_eq!((score(&[-3.5]), score(&[1.0, 1.0]), score(&[])), (-3.5, 0.5, 0.0));
        assert!((score(&[2.0, 0.0]) - 0.880_797).abs() < 1e-6 && score(&[1e9, 0.0]) == 1.0);
    }
}
