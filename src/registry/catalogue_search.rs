//! Searches for models to fetch, with their sizes against this machine.

use std::time::Duration;

use super::options::backend;
use super::registry::Registry;
use catalogue::{Presence, Tools, models_of_hub, search_hub};
use config::{ModelEntry, Source};
use engine::DeviceInfo;

/// A model or a repository that a search has found.
#[derive(Clone, Debug, Default)]
pub struct FoundModel {
    /// The name by which it can be fetched. For a repository, the name by which its models are listed.
    pub id: String,
    pub place: FoundIn,
    pub family: Option<String>,
    pub licence: Option<String>,
    /// The longest context that it was made for [tokens].
    pub context: Option<usize>,
    /// Whether it only continues texts. `None` if unknown.
    pub only_continues: Option<bool>,
    /// Size of its files [bytes].
    pub bytes: Option<u64>,
    /// Estimate of the memory that it takes [bytes].
    pub needed: Option<u64>,
    pub on_disk: bool,
    /// The size of an interrupted download on disk [bytes].
    pub partial: u64,
    pub downloads: Option<u64>,
}

/// Where a search has found something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FoundIn {
    #[default]
    Catalogue,
    /// A model of a repository of the hub.
    Hub,
    /// A repository of the hub.
    Repository,
}

/// The result of a search.
#[derive(Debug, Default)]
pub struct Found {
    pub models: Vec<FoundModel>,
    /// The reason why the hub has not been searched to the end.
    pub hub_fault: Option<String>,
}

/// A model that is not on disk is assumed to need its file's size, a quarter of that for caches and activations, and this [bytes].
const BESIDE: u64 = 256 << 20;

/// Estimates the memory of a model by the size of its file [bytes].
pub fn estimated_memory(size: u64) -> u64 {
    size.saturating_add(size / 4).saturating_add(BESIDE)
}

impl Registry {
    /// Finds models of the catalogue, and with `hub` also repositories of the hub. Words of the form `owner/name` list the models of that
    /// repository. Blocks, with `hub` until the hub has answered.
    pub fn search(&self, words: &str, hub: bool) -> Found {
        let words = words.trim();
        let repository = words.strip_prefix("hf:").unwrap_or(words);
        let is_repository = repository.split('/').count() == 2 && !repository.contains(char::is_whitespace);
        let mut found = Found { models: if is_repository { Vec::new() } else { self.of_catalogue(words) }, hub_fault: None };
        if !hub || words.is_empty() {
            return found;
        }
        // Somebody waits for the answer, so nothing is retried.
        let tools = Tools { backoff: Duration::ZERO, ..Tools::from_env() };
        let of_hub = match is_repository {
            true => models_of_hub(repository, &tools).map(|models| {
                let known = catalogue::models(&self.settings(), &self.store);
                let of = |model: catalogue::HubModel| self.of_hub(&known, model.name, model.size);
                models.into_iter().map(of).collect::<Vec<_>>()
            }),
            false => search_hub(words, &tools).map(|found| found.into_iter().map(of_repository).collect()),
        };
        match of_hub {
            Ok(mut models) => found.models.append(&mut models),
            Err(error) => found.hub_fault = Some(error.to_string()),
        }
        found
    }

    fn of_catalogue(&self, words: &str) -> Vec<FoundModel> {
        let words: Vec<String> = words.split_whitespace().map(str::to_ascii_lowercase).collect();
        let matches = |entry: &&ModelEntry| {
            let names: String = entry.names().map(|(_, name)| name.to_ascii_lowercase() + " ").collect();
            words.iter().all(|word| names.contains(word) || entry.family.as_ref().is_some_and(|family| family.contains(word)))
        };
        let config = self.settings();
        let fetchable = config.models.iter().filter(|entry| entry.of.is_none() && !matches!(entry.source, Source::File { .. }));
        let mut models: Vec<FoundModel> = fetchable.filter(matches).map(|entry| self.found(entry)).collect();
        models.sort_by_key(|model| model.only_continues);
        models
    }

    fn found(&self, entry: &ModelEntry) -> FoundModel {
        let bytes = entry.size_or_about();
        let presence = self.store.presence(entry);
        FoundModel {
            id: entry.id.clone(),
            place: FoundIn::Catalogue,
            family: entry.family.clone(),
            licence: entry.licence.clone(),
            context: entry.max_context,
            only_continues: Some(entry.only_continues()),
            bytes,
            needed: bytes.map(estimated_memory),
            on_disk: presence == Presence::Yes,
            partial: if let Presence::Partial(bytes) = presence { bytes } else { 0 },
            downloads: None,
        }
    }

    fn of_hub(&self, models: &[ModelEntry], name: String, size: u64) -> FoundModel {
        let known = catalogue::resolve_among(models, &name).map(|entry| self.found(&entry)).unwrap_or_default();
        let (bytes, needed) = (Some(size), Some(estimated_memory(size)));
        FoundModel { id: name, place: FoundIn::Hub, only_continues: None, bytes, needed, ..known }
    }

    /// The device that models are loaded on. Blocks.
    pub fn device(&self) -> Option<DeviceInfo> {
        let config = self.settings();
        engine::find_device(backend(config.engine.backend), config.engine.device).ok()?.describe().ok()
    }
}

fn of_repository(repository: catalogue::HubRepository) -> FoundModel {
    FoundModel { id: repository.id, place: FoundIn::Repository, downloads: Some(repository.downloads), ..FoundModel::default() }
}
