//! Entries of the catalogue (`[[models]]`), and the search for a name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::cache_type::CacheType;
use super::context::Context;
use super::drafts::Drafts;
use super::mmproj::Mmproj;
use super::named_adapter::NamedAdapter;
use super::source::Source;
use super::stored_variant::StoredVariant;
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
    /// Ids that the model had earlier. Once the configuration is loaded, they are aliases as well. The store looks under them, too.
    #[serde(default)]
    pub former: Vec<String>,
    /// Required unless `of` is set.
    #[serde(default = "no_source")]
    pub source: Source,
    /// Makes the entry a variant: another name, with its own parameters, for the weights of the model with this id or alias. Once the
    /// configuration is loaded, this is an id, and the fields that describe the weights are copied from that model's entry.
    #[serde(default)]
    pub of: Option<String>,
    /// The digest of the whole GGUF file, in lower-case hex.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Size of the whole file, for the progress bar and for checks [bytes].
    #[serde(default)]
    pub size: Option<u64>,
    /// The model's picture encoder. None: the file beside the model or in its repository, if there is one.
    #[serde(default)]
    pub mmproj: Option<Mmproj>,
    /// The family under which lists show the model.
    #[serde(default)]
    pub family: Option<String>,
    /// The licence of the weights.
    #[serde(default)]
    pub licence: Option<String>,
    /// Approximate size of the files, with that of the mmproj, for lists, if `size` is not given [GB].
    #[serde(default)]
    pub gigabytes: Option<f64>,
    /// The longest context that the model was made for, for lists [tokens].
    #[serde(default)]
    pub max_context: Option<usize>,
    /// Whether the model only continues texts, since it was not tuned to answer.
    #[serde(default)]
    pub base: bool,
    /// The sampling values for requests that do not choose.
    #[serde(default)]
    pub sampling: SamplingChoice,
    /// Whether the entry belongs to the built-in catalogue.
    #[serde(skip)]
    pub built_in: bool,
    /// The longest context served. Replaces `engine.context`.
    #[serde(default)]
    pub context: Option<Context>,
    /// How the KV cache stores keys and values. Replaces `engine.cache_type`.
    #[serde(default)]
    pub cache_type: Option<CacheType>,
    /// Whether to load the model at start rather than at the first request.
    #[serde(default)]
    pub eager: bool,
    /// Whether the model, once loaded, is never unloaded, neither for memory nor because it is idle.
    #[serde(default)]
    pub pinned: bool,
    /// Time without a request after which the model is unloaded [minutes]. 0: never. Replaces `server.idle_unload_minutes`.
    #[serde(default)]
    pub idle_unload_minutes: Option<f64>,
    /// A file with a Jinja chat template that replaces the model file's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
    /// The most tokens of an answer, for requests that do not choose.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The system message for conversations that begin without one.
    #[serde(default)]
    pub system: Option<String>,
    /// The level of reasoning, for requests that do not choose.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Variables of the chat template, for requests that do not set them.
    #[serde(default)]
    pub chat_template_kwargs: BTreeMap<String, Value>,
    /// The model's weight when its device's time and memory are divided among models. None: 1.
    #[serde(default)]
    pub share: Option<f64>,
    /// How often the model is loaded. Replaces `engine.replicas`.
    #[serde(default)]
    pub replicas: Option<usize>,
    /// Whether the model's answers are drafted. None: as `engine.drafts` says.
    #[serde(default)]
    pub drafts: Option<Drafts>,
    /// A smaller model with the same vocabulary that drafts the model's answers: an id, an alias, or the path of a GGUF file.
    #[serde(default)]
    pub draft: Option<String>,
    /// What the name adds to the weights. It comes from `[[adapters]]`, or from the store.
    #[serde(skip)]
    pub adapter: Option<NamedAdapter>,
    /// The settings of a model that was made on this machine. They are in the store, not in the configuration.
    #[serde(skip)]
    pub made: Option<Arc<StoredVariant>>,
}

/// Stands for a source that is not given.
fn no_source() -> Source {
    Source::File { path: PathBuf::new() }
}

impl ModelEntry {
    /// An entry without optional fields.
    pub fn new(id: &str, source: Source) -> Self {
        Self {
            id: id.to_owned(),
            aliases: Vec::new(),
            former: Vec::new(),
            source,
            of: None,
            sha256: None,
            size: None,
            mmproj: None,
            family: None,
            licence: None,
            gigabytes: None,
            max_context: None,
            base: false,
            sampling: SamplingChoice::default(),
            built_in: false,
            context: None,
            cache_type: None,
            eager: false,
            pinned: false,
            idle_unload_minutes: None,
            chat_template: None,
            max_tokens: None,
            system: None,
            reasoning_effort: None,
            chat_template_kwargs: BTreeMap::new(),
            share: None,
            replicas: None,
            drafts: None,
            draft: None,
            adapter: None,
            made: None,
        }
    }
}

/// Finds the entry with this id or alias.
pub fn find_model<'a>(models: &'a [ModelEntry], name: &str) -> Option<&'a ModelEntry> {
    models.iter().find(|entry| entry.id == name || entry.aliases.iter().any(|alias| alias == name))
}

impl ModelEntry {
    /// The context of the name over weights that are served with `served` tokens.
    pub fn context_within(&self, served: usize) -> usize {
        self.made.as_ref().and_then(|made| made.context()).unwrap_or(usize::MAX).min(served)
    }

    /// The context that the entry sets. None if it sets none or `auto`.
    pub fn served_context(&self) -> Option<usize> {
        match self.context? {
            Context::Auto => None,
            Context::Tokens(tokens) => Some(tokens),
        }
    }

    /// The id under which the model's files are stored. A variant uses that of its base model.
    pub fn stored_as(&self) -> &str {
        self.of.as_deref().unwrap_or(&self.id)
    }

    /// The model that this one is a variant of.
    pub fn parent(&self) -> Option<&str> {
        self.of.as_deref().or_else(|| self.made.as_ref()?.from.as_deref())
    }

    /// The approximate size of the model's files, if the catalogue has one [bytes].
    pub fn about(&self) -> Option<u64> {
        self.gigabytes.map(|size| (size * 1e9) as u64)
    }

    /// The size of the model's files, exact or approximate [bytes]. None if the catalogue does not know it.
    pub fn size_or_about(&self) -> Option<u64> {
        self.size.or(self.about())
    }

    /// The ids under which the model's files may be stored: the current one, and those of earlier versions.
    pub fn stored_under(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.stored_as()).chain(self.former.iter().map(String::as_str))
    }

    /// Advice for users who name the model by an earlier id.
    pub fn hint_for(&self, name: &str) -> Option<String> {
        let what = if self.base { ", because it is a base model, which continues texts and does not chat" } else { "" };
        self.former.iter().any(|former| former == name).then(|| format!("`{name}` is called `{}` now{what}", self.id))
    }

    /// Whether the model does not chat although its file may hold a chat template. With a template of its own, an entry chats.
    pub fn only_continues(&self) -> bool {
        self.base && self.chat_template.is_none()
    }

    /// Whether a source is given.
    pub(super) fn has_source(&self) -> bool {
        !matches!(&self.source, Source::File { path } if path.as_os_str().is_empty())
    }

    /// Copies the fields that describe the weights from the variant's base model.
    pub(super) fn stand_on(&mut self, base: &Self) {
        self.of = Some(base.id.clone());
        self.former.clone_from(&base.former);
        self.source = base.source.clone();
        self.sha256.clone_from(&base.sha256);
        self.size = base.size;
        self.mmproj.clone_from(&base.mmproj);
        self.draft.clone_from(&base.draft);
        self.family = self.family.take().or_else(|| base.family.clone());
        self.licence.clone_from(&base.licence);
        self.gigabytes = base.gigabytes;
        self.max_context = base.max_context;
        self.base |= base.base;
        self.context = self.context.or(base.context);
        self.cache_type = self.cache_type.or(base.cache_type);
        self.chat_template = self.chat_template.take().or_else(|| base.chat_template.clone());
    }

    /// Pairs of (id, name), for the id itself and for each alias.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::once(&self.id).chain(&self.aliases).map(|name| (self.id.as_str(), name.as_str()))
    }
}
