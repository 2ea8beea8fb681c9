//! What is set of adapters, in the configuration and while the server runs.

use std::path::PathBuf;

use super::error::RegistryError;
use super::served_models::ServedModels;
use catalogue::Store;
use config::{AdapterEntry, Config, ModelEntry, find_model};

/// An adapter that a request names, and the factor of its changes.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterAsk {
    pub which: AdapterRef,
    pub scale: f32,
}

/// How a request names an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterRef {
    /// The number that `/lora-adapters` lists.
    Number(usize),
    Name(String),
}

/// An adapter of the list.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedAdapter {
    /// Stays the adapter's as long as the process runs.
    pub number: usize,
    pub id: String,
    pub path: PathBuf,
    /// The model that it changes.
    pub base: String,
    /// The factor for requests that name the adapter as their model.
    pub scale: f32,
    /// The factor for requests to the model itself that choose no adapters.
    pub default_scale: f32,
}

/// What is set while the server runs.
#[derive(Default)]
pub struct AdapterSettings {
    /// The ids of all adapters so far. The index is the adapter's number.
    pub(super) numbers: Vec<String>,
    /// The adapters of requests to a model itself, in the order in which they are added, with their scales.
    pub(super) defaults: Vec<(String, f32)>,
    pub(super) added: Vec<AdapterEntry>,
}

impl AdapterSettings {
    pub(super) fn number(&mut self, id: &str) -> usize {
        self.numbers.iter().position(|known| known == id).unwrap_or_else(|| {
            self.numbers.push(id.to_owned());
            self.numbers.len() - 1
        })
    }
}

pub(super) fn refused<T>(cause: impl Into<String>) -> Result<T, RegistryError> {
    Err(RegistryError::AdapterRefused(cause.into()))
}

/// Checks the adapters of a configuration at start: a mistake is reported then, and not to the first client.
///
/// # Errors
/// A path does not exist, a base model is unknown or an adapter itself, or a name is that of another served model.
pub(super) fn check(config: &Config, store: &Store, served: &ServedModels, models: &[ModelEntry]) -> anyhow::Result<()> {
    for adapter in &config.adapters {
        let id = &adapter.id;
        let path = store.adapter_path(&adapter.path);
        if let Some(from) = store.missing_adapter(&path) {
            anyhow::bail!("adapter `{id}`: it is not on disk: `penstock pull --adapter {from}` fetches it");
        }
        anyhow::ensure!(path.exists(), "adapter `{id}`: {}: no such file or folder", path.display());
        let names = std::iter::once(id).chain(&adapter.aliases);
        let found: Vec<_> = names.map(|name| (name, served.find(name).map(|(base, index)| &base.variants[index]))).collect();
        let is_other = |found: &ModelEntry| found.id != *id || found.adapter.is_none();
        if let Some((name, Some(other))) = found.iter().find(|(_, found)| found.is_some_and(is_other)) {
            anyhow::bail!("adapter `{id}`: the name `{name}` also belongs to the model `{}`", other.id);
        }
        match (found.iter().any(|(_, found)| found.is_some()), adapter.of.as_deref()) {
            (true, _) => {}
            (false, None) => anyhow::bail!("adapter `{id}`: the first served model has an adapter itself: name another model in `of`"),
            (false, Some(of)) => {
                let base = served.find(of).map(|(base, index)| &base.variants[index]).or_else(|| find_model(models, of));
                anyhow::ensure!(base.is_some(), "adapter `{id}`: `of`: there is no model `{of}`");
                anyhow::ensure!(
                    base.is_none_or(|base| base.adapter.is_none()),
                    "adapter `{id}`: `of`: `{of}` has an adapter itself: name the model that it changes"
                );
            }
        }
    }
    Ok(())
}
