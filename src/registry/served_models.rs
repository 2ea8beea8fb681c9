//! The list of served models: the named ones, those of the configuration, and those on disk.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::base::{Base, Loaded, answers_to, modified};
use super::load;
use super::notifier::Notifier;
use catalogue::{self, LATEST, Store};
use config::{Config, ModelEntry, Source, find_model};
use logits::SamplingChoice;
use serving::Model;

/// The served models. The list is replaced as a whole.
pub struct ServedModels {
    pub bases: Vec<Arc<Base>>,
}

/// A model that is offered to clients.
struct OfferedModel {
    entry: ModelEntry,
    eager: bool,
}

impl ServedModels {
    /// `named`: the names on the command line or in `server.default_models`. The first one is loaded at start. `started`: when the server
    /// was started [Unix seconds].
    ///
    /// # Errors
    /// A name is unknown, or two of them stand for different models under the same id.
    pub fn new(config: &Config, store: &Store, named: &[String], started: u64, notifier: &Arc<Notifier>) -> anyhow::Result<Self> {
        let models = catalogue::models(config, store);
        let mut offers = named_offers(config, &models, named)?;
        if config.server.on_demand {
            add_others(config, &models, store, &mut offers);
        }
        add_adapters(config, named, store, &mut offers);
        let mut groups: Vec<(ModelEntry, Vec<ModelEntry>, bool)> = Vec::new();
        for OfferedModel { entry, eager } in offers {
            let weights = weights_of(config, &models, &entry);
            match groups.iter_mut().find(|(other, ..)| shares_load(store, other, &weights)) {
                Some((_, variants, is_eager)) => {
                    variants.push(entry);
                    *is_eager |= eager;
                }
                None => groups.push((weights, vec![entry], eager)),
            }
        }
        let base = |(weights, variants, eager)| {
            let created = store.path(&weights).and_then(|path| modified(&path)).unwrap_or(started);
            Arc::new(Base::new(weights, variants, eager, created, notifier.clone()))
        };
        Ok(Self { bases: groups.into_iter().map(base).collect() })
    }

    /// Takes over equal bases from `before`, with their loaded models, and those whose names have changed (`models`).
    /// Returns the bases that are not served any more.
    pub fn keep(&mut self, before: &Self, models: Vec<(usize, Arc<Base>, Vec<Arc<Model>>)>) -> Vec<Arc<Base>> {
        for (at, old, models) in models {
            self.bases[at].slot.adopt(&old.slot, |loaded| Loaded {
                context: loaded.context,
                on_devices: loaded.on_devices.clone(),
                models,
            });
        }
        for base in &mut self.bases {
            if let Some(old) = before.bases.iter().find(|old| old.is_like(base)) {
                *base = old.clone();
            }
        }
        before.bases.iter().filter(|old| !self.bases.iter().any(|base| Arc::ptr_eq(base, old))).cloned().collect()
    }

    /// The bases whose weights are loaded already under other names, by index, with their models over those weights, and those whose
    /// files cannot be read, with the cause. Blocks: it reads files.
    #[allow(clippy::type_complexity, reason = "each part is used once")]
    pub fn models_over(&self, before: &Self, store: &Store) -> (Vec<(usize, Arc<Base>, Vec<Arc<Model>>)>, Vec<(String, anyhow::Error)>) {
        let (mut over, mut faults) = (Vec::new(), Vec::new());
        for (at, base) in self.bases.iter().enumerate() {
            let is_old = |old: &&Arc<Base>| old.entry == base.entry && old.variants != base.variants;
            let Some(old) = before.bases.iter().find(is_old) else { continue };
            let Some((path, loaded)) = store.path(&base.entry).zip(old.slot.peek()) else { continue };
            match load::models_over(base, old, &loaded, &path) {
                Ok(models) => over.push((at, old.clone(), models)),
                Err(error) => faults.push((base.id().to_owned(), error)),
            }
        }
        (over, faults)
    }

    /// Whether both lists have the same bases in the same order.
    pub fn is_like(&self, other: &Self) -> bool {
        self.bases.len() == other.bases.len() && self.bases.iter().zip(&other.bases).all(|(one, two)| Arc::ptr_eq(one, two))
    }

    /// Finds the base model and the index of its variant with this name. Ollama's clients add `:latest` to names without a tag.
    pub fn find(&self, name: &str) -> Option<(&Arc<Base>, usize)> {
        let named = |name: &str| self.bases.iter().find_map(|base| Some((base, base.variant(name)?)));
        named(name).or_else(|| named(name.strip_suffix(LATEST)?))
    }

    /// Like [`ServedModels::find`], also by the path of a file that was named at start.
    pub fn find_named(&self, name: &str) -> Option<(&Arc<Base>, usize)> {
        let of_path = || self.bases.iter().find_map(|base| Some((base, base.variants.iter().position(|one| is_named(one, name))?)));
        self.find(name).or_else(of_path)
    }
}

/// The entry for loading the weights of a name. Equal entries share one load.
fn weights_of(config: &Config, models: &[ModelEntry], entry: &ModelEntry) -> ModelEntry {
    let base = entry.of.as_ref().and_then(|of| find_model(&config.models, of).or_else(|| find_model(models, of)));
    // An adapter's base may be a file whose name another model has.
    let base = base.filter(|base| base.source == entry.source);
    // Fields that only concern a name must not cause another load.
    let plain = |weights: &ModelEntry| ModelEntry {
        aliases: Vec::new(),
        eager: false,
        pinned: false,
        idle_unload_minutes: None,
        chat_template: None,
        sampling: if weights.made.is_some() { SamplingChoice::default() } else { weights.sampling },
        max_tokens: weights.max_tokens.filter(|_| weights.made.is_none()),
        system: weights.system.clone().filter(|_| weights.made.is_none()),
        reasoning_effort: weights.reasoning_effort.clone().filter(|_| weights.made.is_none()),
        chat_template_kwargs: if weights.made.is_some() { Default::default() } else { weights.chat_template_kwargs.clone() },
        adapter: None,
        made: None,
        ..weights.clone()
    };
    ModelEntry { context: entry.context, cache_type: entry.cache_type, draft: entry.draft.clone(), ..plain(base.unwrap_or(entry)) }
}

/// Whether two names can share one load: the same file with the same options. A made model's file is that of the model it was made from.
fn shares_load(store: &Store, one: &ModelEntry, two: &ModelEntry) -> bool {
    let is_stored = |entry: &ModelEntry| entry.source == Source::Stored;
    let same_source = !is_stored(one) && one.source == two.source && one.sha256 == two.sha256;
    let same_file = || {
        let file = |entry: &ModelEntry| file_number(&store.path(entry)?);
        (is_stored(one) || is_stored(two)) && file(one).is_some_and(|number| Some(number) == file(two))
    };
    // A made model has links to the picture encoder of its origin.
    let same_pictures = one.mmproj == two.mmproj || is_stored(one) || is_stored(two);
    let same_options = one.context == two.context
        && one.cache_type == two.cache_type
        && one.draft == two.draft
        && one.base == two.base
        && one.replicas == two.replicas;
    same_options && same_pictures && (same_source || same_file())
}

/// Identifies a file regardless of its name: device and inode.
fn file_number(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

fn named_offers(config: &Config, models: &[ModelEntry], named: &[String]) -> anyhow::Result<Vec<OfferedModel>> {
    let mut offers: Vec<OfferedModel> = Vec::new();
    for name in named {
        let mut entry = catalogue::resolve_among(models, name)?;
        if matches!(entry.source, Source::File { .. }) && find_model(&config.models, name).is_none() {
            entry.mmproj = entry.mmproj.or_else(|| config.mmproj.clone());
        }
        entry.draft = config.draft.clone().or(entry.draft);
        let namesake = offers.iter().find(|other| share_a_name(&other.entry, &entry));
        if let Some(OfferedModel { entry: other, .. }) = namesake {
            let source = &other.source;
            anyhow::ensure!(*source == entry.source, "`{name}` and `{}` have the same name", catalogue::describe(source));
            continue;
        }
        let eager = entry.eager || offers.is_empty();
        offers.push(OfferedModel { entry, eager });
    }
    Ok(offers)
}

/// Adds the models of the configuration whose files are on disk, and those of the store.
fn add_others(config: &Config, models: &[ModelEntry], store: &Store, offers: &mut Vec<OfferedModel>) {
    let stored = store.list().into_iter().map(|manifest| {
        let sha256 = Some(manifest.sha256);
        ModelEntry { sha256, size: Some(manifest.size), ..ModelEntry::new(&manifest.id, manifest.source) }
    });
    let is_adapter = |entry: &ModelEntry| config.adapters.iter().any(|adapter| adapter.id == entry.id);
    let configured = models.iter().filter(|entry| !is_adapter(entry) && store.path(entry).is_some()).cloned();
    for entry in configured.chain(stored) {
        if !offers.iter().any(|other| share_a_name(&other.entry, &entry)) {
            offers.push(OfferedModel { eager: entry.eager, entry });
        }
    }
}

/// Adds the adapters of the configuration whose models are offered.
fn add_adapters(config: &Config, named: &[String], store: &Store, offers: &mut Vec<OfferedModel>) {
    for adapter in &config.adapters {
        let Some(of) = adapter.of.as_ref().or(named.first()) else { continue };
        let is_base = |offer: &&OfferedModel| offer.entry.adapter.is_none() && is_named(&offer.entry, of);
        let Some(entry) = offers.iter().find(is_base).map(|base| store.adapter_over(adapter, &base.entry)) else { continue };
        if !offers.iter().any(|other| share_a_name(&other.entry, &entry)) {
            offers.push(OfferedModel { eager: entry.eager, entry });
        }
    }
}

/// Whether an entry has a name, or is the file that was named by its path.
fn is_named(entry: &ModelEntry, name: &str) -> bool {
    let is_file = || entry.of.is_none() && matches!(&entry.source, Source::File { path } if path == Path::new(name));
    answers_to(entry, name) || name.strip_suffix(LATEST).is_some_and(|name| answers_to(entry, name)) || is_file()
}

fn share_a_name(one: &ModelEntry, other: &ModelEntry) -> bool {
    std::iter::once(&one.id).chain(&one.aliases).any(|name| answers_to(other, name))
}
