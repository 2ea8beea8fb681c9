//! Models by name: the catalogue, where they come from, what is on disk, what is loaded.

mod catalogue;
mod fault;
mod load;
mod pool;
pub mod source;
pub mod store;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

pub use catalogue::{describe, resolve};
pub use load::load_model;
pub use store::{Presence, Store};

use pool::{Patience, Slot, Unavailable};
use source::{Progress, Tools};

use crate::answer::Style;
use crate::config::{Config, ModelEntry};
use crate::grammar::Compiler;
use crate::metrics::ModelMetrics;
use crate::model::ModelSpec;
use crate::scheduler::{Handle, Pooling};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// A model that is open and has an engine thread.
pub struct LoadedModel {
    pub id: String,
    /// Unix seconds, for `created`.
    pub created: u64,
    pub spec: ModelSpec,
    /// The longest context served, in tokens.
    pub context: usize,
    pub tokenizer: Arc<Tokenizer>,
    pub grammars: Compiler,
    /// None: the file has no chat template.
    pub template: Option<ChatTemplate>,
    /// How it writes tool calls and reasoning; None without a template.
    pub style: Option<Style>,
    pub handle: Handle,
    /// "cpu" or "cuda"
    pub backend: &'static str,
    /// How a text becomes a vector; None: the file is of a model that ranks.
    pub pooling: Option<Pooling>,
    /// Names what answers depend on: this build, the model's contents and the backend.
    pub fingerprint: String,
    /// Sequences that run at once.
    pub max_running: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the model `{0}` does not exist")]
    NotFound(String),
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
    served: Vec<Served>,
    /// For `created` of what is not on disk yet.
    started: u64,
    load: Loader,
}

/// Opens a model file; tests put another in its place.
pub(crate) type Loader = Box<dyn Fn(&Config, &ModelEntry, &Path) -> anyhow::Result<LoadedModel> + Send + Sync>;

struct Served {
    entry: ModelEntry,
    eager: bool,
    slot: Slot<LoadedModel>,
}

const PATIENCE: Patience = Patience { wait: Duration::from_secs(60), failure: Duration::from_secs(10) };

impl Registry {
    /// `serve` names what to serve: catalogue ids or aliases, or paths of GGUF files. Nothing is loaded yet.
    ///
    /// The first one counts as eager, whatever its entry says, so that a server is of use once it is ready.
    pub fn new(config: &Config, serve: &[String]) -> anyhow::Result<Arc<Self>> {
        Self::with_loader(config, serve, Box::new(load_model))
    }

    pub(crate) fn with_loader(config: &Config, serve: &[String], load: Loader) -> anyhow::Result<Arc<Self>> {
        anyhow::ensure!(!serve.is_empty(), "no model is named: give --model or set server.default_models");
        let mut served: Vec<Served> = Vec::new();
        for name in serve {
            let entry = catalogue::resolve(config, name)?;
            if let Some(other) =
                served.iter().find(|other| other.answers_to(&entry.id) || entry.aliases.iter().any(|alias| other.answers_to(alias)))
            {
                anyhow::ensure!(
                    other.entry.source == entry.source,
                    "`{name}` and `{}` have the same name",
                    catalogue::describe(&other.entry.source)
                );
                continue;
            }
            let slot = Slot::new(|model: &LoadedModel| model.handle.is_alive(), |model: &LoadedModel| model.handle.stop());
            served.push(Served { eager: entry.eager || served.is_empty(), entry, slot });
        }
        Ok(Arc::new(Self {
            config: config.clone(),
            store: Store::new(&config.server.models_dir),
            served,
            started: unix_seconds(SystemTime::now()),
            load,
        }))
    }

    /// Fetches what is missing (progress on stderr) and loads the eager models; blocking.
    pub fn load_eager(&self) -> anyhow::Result<()> {
        for served in &self.served {
            if self.store.path(&served.entry).is_none() {
                let progress = Progress::new(&served.entry.id, served.entry.size);
                self.store.pull(&served.entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", served.entry.id))?;
            }
        }
        for served in self.served.iter().filter(|served| served.eager) {
            self.open(served)?;
        }
        Ok(())
    }

    pub fn list(&self) -> Vec<ModelInfo> {
        self.served.iter().map(|served| self.info_of(served)).collect()
    }

    /// A served model by id or alias, loaded or not.
    pub fn info(&self, name: &str) -> Option<ModelInfo> {
        self.find(name).map(|served| self.info_of(served))
    }

    fn info_of(&self, served: &Served) -> ModelInfo {
        let id = served.entry.id.clone();
        match served.slot.peek() {
            Some(model) => ModelInfo { id, created: model.created, context: Some(model.context), loaded: true },
            None => {
                let created = self.store.path(&served.entry).and_then(|path| modified(&path)).unwrap_or(self.started);
                ModelInfo { id, created, context: served.entry.context, loaded: false }
            }
        }
    }

    fn find(&self, name: &str) -> Option<&Served> {
        self.served.iter().find(|served| served.answers_to(name))
    }

    /// A loaded model by id or alias; a lazy one is loaded first (blocking: call it off the event loop). One whose engine
    /// has died is loaded anew.
    pub fn get(&self, id: &str) -> Result<Arc<LoadedModel>, RegistryError> {
        self.open(self.find(id).ok_or_else(|| RegistryError::NotFound(id.into()))?)
    }

    fn open(&self, served: &Served) -> Result<Arc<LoadedModel>, RegistryError> {
        let entry = &served.entry;
        if served.slot.died().is_some_and(|model| model.handle.is_lost()) {
            let cause = "its device is lost: the process must be started again".into();
            return Err(RegistryError::LoadFailed { id: entry.id.clone(), cause });
        }
        let load = || {
            let path = self.store.path(entry).ok_or_else(|| format!("it is not on disk: `penstock pull {}` fetches it", entry.id))?;
            let (metrics, start) = (ModelMetrics::for_model(&entry.id), Instant::now());
            let loaded = (self.load)(&self.config, entry, &path);
            match &loaded {
                Ok(_) => metrics.model_load_seconds.observe(start.elapsed().as_secs_f64()),
                Err(_) => metrics.model_load_failures_total.inc(),
            }
            loaded.map_err(|error| format!("{error:#}"))
        };
        served.slot.get(PATIENCE, load).map_err(|why| match why {
            Unavailable::Loading => RegistryError::Loading(entry.id.clone()),
            Unavailable::Failed(cause) => RegistryError::LoadFailed { id: entry.id.clone(), cause },
        })
    }

    /// A model that is loaded already: the fast path on the event loop.
    pub fn get_loaded(&self, id: &str) -> Option<Arc<LoadedModel>> {
        self.find(id)?.slot.peek()
    }

    /// Is every eager model loaded and alive?
    pub fn is_ready(&self) -> bool {
        self.served.iter().filter(|served| served.eager).all(|served| served.slot.peek().is_some())
    }

    /// Did an engine stop by itself, and has no request had its model loaded anew?
    pub fn has_dead_engine(&self) -> bool {
        self.served.iter().any(|served| served.slot.died().is_some())
    }

    /// Stops every engine thread.
    pub fn stop(&self) {
        self.served.iter().for_each(|served| served.slot.stop());
    }
}

impl Served {
    fn answers_to(&self, name: &str) -> bool {
        self.entry.id == name || self.entry.aliases.iter().any(|alias| alias == name)
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a file was last written: Unix seconds.
fn modified(path: &Path) -> Option<u64> {
    Some(unix_seconds(path.metadata().ok()?.modified().ok()?))
}
