//! Which models this process serves, and which of them are loaded.

mod base;
mod fault;
mod load_once;
mod options;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

pub use fault::{EXIT_DEVICE_LOST, EXIT_STUCK};
pub use options::{backend, default_sampling, engine_options};

use base::{Base, Loaded, Variant, modified, unix_seconds};
use load_once::{Patience, Unavailable};

use catalogue::{self, Progress, Store, Tools};
use config::Config;
use metrics::ModelMetrics;
use serving::Model;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the model `{id}` does not exist")]
    NotFound {
        id: String,
        /// The id of a served model with a like name.
        near: Option<String>,
    },
    #[error("the model `{0}` is still loading")]
    Loading(String),
    #[error("the model `{id}` could not be loaded: {cause}")]
    LoadFailed { id: String, cause: String },
}

/// What `/v1/models` lists.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    pub id: String,
    pub created: u64,
    pub context: Option<usize>,
    pub loaded: bool,
}

/// The models that this process serves; shared by every HTTP worker.
pub struct Registry {
    config: Config,
    store: Store,
    bases: Vec<Base>,
    /// Unix seconds: `created` of models that are not on disk yet.
    started: u64,
    load: Loader,
}

/// Loads a base model from a file; tests use another one.
pub type Loader = Box<dyn Fn(&Config, &Base, &Path) -> anyhow::Result<Loaded> + Send + Sync>;

const PATIENCE: Patience = Patience { wait: Duration::from_secs(60), failure: Duration::from_secs(10) };

impl Registry {
    /// A registry of the models that `serve` names: catalogue ids or aliases, or paths of GGUF files. Loads nothing yet.
    ///
    /// The first model is always eager, so that a server that is ready can serve at least one model.
    pub fn new(config: &Config, serve: &[String]) -> anyhow::Result<Arc<Self>> {
        Self::with_loader(config, serve, Box::new(base::load))
    }

    /// Like [`Registry::new`], but `load` loads the base models. For tests.
    #[doc(hidden)]
    pub fn with_loader(config: &Config, serve: &[String], load: Loader) -> anyhow::Result<Arc<Self>> {
        anyhow::ensure!(!serve.is_empty(), "no model is named: use --model or set server.default_models");
        let mut bases: Vec<Base> = Vec::new();
        for name in serve {
            let entry = catalogue::resolve(config, name)?;
            let names = || std::iter::once(&entry.id).chain(&entry.aliases);
            let namesake = bases.iter().find(|base| names().any(|name| base.variant(name).is_some()));
            if let Some(other) = namesake {
                let source = &other.entry.source;
                anyhow::ensure!(*source == entry.source, "`{name}` and `{}` have the same name", catalogue::describe(source));
                continue;
            }
            let eager = entry.eager || bases.is_empty();
            bases.push(Base::new(entry, eager));
        }
        let (store, started) = (Store::new(&config.server.models_dir), unix_seconds(SystemTime::now()));
        Ok(Arc::new(Self { config: config.clone(), store, bases, started, load }))
    }

    /// Fetches what is missing (progress on stderr) and loads the eager models; blocking.
    pub fn load_eager(&self) -> anyhow::Result<()> {
        for Base { entry, .. } in &self.bases {
            if self.store.path(entry).is_none() {
                let progress = Progress::new(&entry.id, entry.size);
                self.store.pull(entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", entry.id))?;
            }
        }
        for base in self.bases.iter().filter(|base| base.eager) {
            self.open(base, false)?;
        }
        Ok(())
    }

    pub fn list(&self) -> Vec<ModelInfo> {
        self.bases.iter().flat_map(|base| base.variants.iter().map(|variant| self.info_of(base, variant))).collect()
    }

    /// A served model by id or alias, loaded or not.
    pub fn info(&self, name: &str) -> Option<ModelInfo> {
        self.find(name).map(|(base, index)| self.info_of(base, &base.variants[index]))
    }

    /// The id of a served model, by its id or an alias.
    pub fn id(&self, name: &str) -> Option<&str> {
        self.find(name).map(|(base, index)| base.variants[index].id.as_str())
    }

    fn info_of(&self, base: &Base, variant: &Variant) -> ModelInfo {
        let id = variant.id.clone();
        match base.loaded.peek() {
            Some(loaded) => ModelInfo { id, created: loaded.created, context: Some(loaded.context), loaded: true },
            None => {
                let created = self.store.path(&base.entry).and_then(|path| modified(&path)).unwrap_or(self.started);
                ModelInfo { id, created, context: base.entry.served_context(), loaded: false }
            }
        }
    }

    /// A base model and the index of its variant that answers to `name`.
    fn find(&self, name: &str) -> Option<(&Base, usize)> {
        self.bases.iter().find_map(|base| Some((base, base.variant(name)?)))
    }

    /// The error for a name that no served model has.
    pub fn not_found(&self, name: &str) -> RegistryError {
        let names = self.bases.iter().flat_map(|base| &base.variants).flat_map(Variant::names);
        RegistryError::NotFound { id: name.into(), near: config::nearest_model(names, name).map(str::to_owned) }
    }

    /// A model by id or alias. If it is not loaded, this call loads it (it blocks: call it off the event loop). A model whose engine has
    /// died is loaded again.
    pub fn get(&self, name: &str) -> Result<Arc<Model>, RegistryError> {
        let (base, index) = self.find(name).ok_or_else(|| self.not_found(name))?;
        Ok(self.open(base, true)?.models[index].clone())
    }

    /// `logs`: a failed load is logged, because nobody else reports its cause.
    fn open(&self, base: &Base, logs: bool) -> Result<Arc<Loaded>, RegistryError> {
        let entry = &base.entry;
        if base.loaded.died().is_some_and(|loaded| loaded.is_lost()) {
            let cause = "its device is lost: restart the process".into();
            return Err(RegistryError::LoadFailed { id: entry.id.clone(), cause });
        }
        let load = || {
            let loaded = self.load(base).map_err(|error| format!("{error:#}"));
            if let Err(cause) = loaded.as_ref()
                && logs
            {
                tracing::error!("the model `{}` could not be loaded: {}", entry.id, cause.escape_debug());
            }
            loaded
        };
        base.loaded.get(PATIENCE, load).map_err(|why| match why {
            Unavailable::Loading => RegistryError::Loading(entry.id.clone()),
            Unavailable::Failed(cause) => RegistryError::LoadFailed { id: entry.id.clone(), cause },
        })
    }

    fn load(&self, base: &Base) -> anyhow::Result<Loaded> {
        let entry = &base.entry;
        let path = self.store.path(entry).with_context(|| format!("it is not on disk: `penstock pull {}` fetches it", entry.id))?;
        let (metrics, start) = (ModelMetrics::for_model(&entry.id), Instant::now());
        let loaded = (self.load)(&self.config, base, &path);
        match &loaded {
            Ok(_) => metrics.model_load_seconds.observe(start.elapsed().as_secs_f64()),
            Err(_) => metrics.model_load_failures_total.inc(),
        }
        loaded
    }

    /// A model that is loaded already. This is the fast path on the event loop.
    pub fn get_loaded(&self, name: &str) -> Option<Arc<Model>> {
        let (base, index) = self.find(name)?;
        Some(base.loaded.peek()?.models[index].clone())
    }

    /// Whether every eager model is loaded and alive.
    pub fn is_ready(&self) -> bool {
        self.bases.iter().filter(|base| base.eager).all(|base| base.loaded.peek().is_some())
    }

    /// Whether an engine has stopped by itself and no request has loaded its model again.
    pub fn has_dead_engine(&self) -> bool {
        self.bases.iter().any(|base| base.loaded.died().is_some())
    }

    /// Stops every engine thread.
    pub fn stop(&self) {
        self.bases.iter().for_each(|base| base.loaded.stop());
    }
}
