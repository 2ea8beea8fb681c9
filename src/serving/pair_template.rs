//! The template that formats a query and a document for ranking models.

use anyhow::ensure;

use gguf::GgufFile;
use tokenizer::Tokenizer;

/// The metadata key of the pair template, which some models (Qwen3-Reranker) have.
pub(super) const TEMPLATE: &str = "tokenizer.chat_template.rerank";
const PLACES: [&str; 2] = ["{query}", "{document}"];

/// Formats a query and a document for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairTemplate {
    /// None: the two texts are joined by the vocabulary's special tokens.
    template: Option<String>,
}

impl PairTemplate {
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

    /// Fills the texts into the template. Names of control tokens in the texts stay text.
    pub(super) fn filled(&self, tokenizer: &Tokenizer, texts: [&str; 2]) -> Option<String> {
        let template = self.template.as_deref()?;
        let mut out = String::with_capacity(template.len() + texts[0].len() + texts[1].len());
        let mut rest = template;
        let next = |rest: &str| (0..2).filter_map(|i| Some((rest.find(PLACES[i])?, i))).min();
        while let Some((at, i)) = next(rest) {
            out.push_str(&rest[..at]);
            out.push_str(&tokenizer.shield(texts[i]));
            rest = &rest[at + PLACES[i].len()..];
        }
        Some(out + rest)
    }
}
