//! The models of this process: finds them by name, loads them on demand and leases them to requests.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;

use super::adapter_settings::{self, AdapterAsk, AdapterSettings};
use super::base::{Base, Loaded, unix_seconds};
use super::descriptions::Descriptions;
use super::drafting::draft_entry;
use super::error::{Patience, RegistryError};
use super::events::{Events, ModelEventKind, ModelState};
use super::load;
use super::load_admission::{Baselines, LoadAdmission, LoadLock, UnloadReason, fault};
use super::load_slot::{LoadAction, LoadFault};
use super::notifier::Notifier;
use super::pull::Pulls;
use super::served_models::ServedModels;
use catalogue::{Progress, Store, Tools};
use config::{Config, ModelEntry, NamedAdapter};
use logits::SamplingChoice;
use metrics::ModelMetrics;
use serving::{AdapterStore, Model, ReplicaStatus};

/// A model as `/v1/models` lists it.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    pub id: String,
    pub created: u64,
    pub context: Option<usize>,
    pub loaded: bool,
    /// The id of the model that the weights belong to: the model itself, or the one that it is a variant of.
    pub root: String,
    /// The model that it is a variant of.
    pub parent: Option<String>,
    /// What the name adds to the weights.
    pub adapter: Option<NamedAdapter>,
    /// The sampling values for requests that do not choose. None until the model is loaded.
    pub sampling: Option<SamplingChoice>,
}

/// The models that this process serves. Shared by all HTTP workers.
pub struct Registry {
    pub(crate) settings: RwLock<Arc<Config>>,
    pub(crate) named: RwLock<Vec<String>>,
    pub(crate) store: Store,
    pub(crate) served: RwLock<Arc<ServedModels>>,
    /// Models that are not served any more but still in use.
    pub(crate) retired: Mutex<Vec<Arc<Base>>>,
    /// Time of the start, used as `created` of models that are not on disk yet [Unix seconds].
    pub(crate) started: u64,
    pub(crate) notifier: Arc<Notifier>,
    pub(crate) events: Events,
    pub(crate) pulls: Pulls,
    pub(crate) descriptions: Descriptions,
    /// Adapters in the host's memory.
    pub(crate) adapters: Arc<AdapterStore>,
    pub(crate) adapter_settings: Mutex<AdapterSettings>,
    baselines: Baselines,
    /// Held while a model is made, which reads and writes whole files.
    pub(crate) creating: Mutex<()>,
    /// Held while the list of models is made anew.
    pub(crate) listing: Mutex<()>,
    /// Held while a model is loaded. Two loads at once would both count on the same free memory.
    turn: Mutex<()>,
    /// Whether the eager models were loaded once.
    was_ready: Mutex<bool>,
    load: Loader,
}

/// Loads a base model from a file. Tests use their own.
pub type Loader = Box<dyn Fn(&Config, &Base, &Path, &LoadAdmission<'_>) -> anyhow::Result<Loaded> + Send + Sync>;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    /// Creates a registry of the models in `serve` (catalogue ids or aliases, or paths of GGUF files), and of those that are loaded on
    /// demand. Loads nothing yet.
    ///
    /// The first model is always eager, so that a server that is ready can serve at least one model.
    pub fn new(config: &Config, serve: &[String]) -> anyhow::Result<Arc<Self>> {
        Self::with_loader(config, serve, Box::new(load::load))
    }

    /// Like [`Registry::new`], with `load` to load the base models. For tests.
    #[doc(hidden)]
    pub fn with_loader(config: &Config, serve: &[String], load: Loader) -> anyhow::Result<Arc<Self>> {
        anyhow::ensure!(!serve.is_empty(), "no model is named: use --model or set server.default_models");
        let (store, started, notifier) = (Store::new(&config.server.models_dir), unix_seconds(SystemTime::now()), Arc::default());
        let served = ServedModels::new(config, &store, serve, started, &notifier)?;
        adapter_settings::check(config, &store, &served, &catalogue::models(config, &store))?;
        Ok(Arc::new(Self {
            settings: RwLock::new(Arc::new(config.clone())),
            named: RwLock::new(serve.to_vec()),
            store,
            served: RwLock::new(Arc::new(served)),
            retired: Mutex::default(),
            started,
            notifier,
            events: Events::default(),
            pulls: Pulls::default(),
            descriptions: Descriptions::default(),
            adapters: AdapterStore::new(config.engine.adapter_cache_bytes),
            adapter_settings: Mutex::default(),
            baselines: Baselines::default(),
            creating: Mutex::default(),
            listing: Mutex::default(),
            turn: Mutex::default(),
            was_ready: Mutex::default(),
            load,
        }))
    }

    pub(crate) fn settings(&self) -> Arc<Config> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn served(&self) -> Arc<ServedModels> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every base model that may be loaded, including those that are not served any more.
    pub(crate) fn all(&self) -> Vec<Arc<Base>> {
        // Locked in the same order as in `serve_anew`. Both are held at once, so that a model that moves is found exactly once.
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        let retired = lock(&self.retired);
        served.bases.iter().chain(&*retired).cloned().collect()
    }

    /// Fetches missing files (with progress on stderr) and loads the eager models. Blocks.
    pub fn load_eager(self: &Arc<Self>) -> anyhow::Result<()> {
        let (served, named) = (self.served(), self.named.read().unwrap_or_else(PoisonError::into_inner).clone());
        let is_named = |base: &Base| base.eager || named.iter().any(|name| base.variant(name).is_some());
        let fetch = |entry: &ModelEntry| {
            let progress = Progress::new(&entry.id, entry.size);
            self.store.pull(entry, &Tools::from_env(), &progress).with_context(|| format!("model `{}`", entry.id))
        };
        for base in served.bases.iter().filter(|base| is_named(base)) {
            let entry = &base.entry;
            // What the catalogue alone names is fetched by `penstock pull`, so that a server with all its weights starts without a network.
            if self.store.path(entry).is_none() || !entry.built_in && self.store.lacks_mmproj(entry) {
                fetch(entry)?;
            }
            if let Some(draft) = draft_entry(&self.settings(), entry)?.filter(|draft| self.store.path(draft).is_none()) {
                fetch(&draft)?;
            }
        }
        for base in served.bases.iter().filter(|base| base.eager) {
            self.get(&base.variants[0].id)?;
            for variant in base.variants.iter().filter(|variant| variant.eager && variant.adapter.is_some()) {
                self.get(&variant.id)?;
            }
        }
        *lock(&self.was_ready) = true;
        Ok(())
    }

    pub fn list(&self) -> Vec<ModelInfo> {
        self.served().bases.iter().flat_map(|base| base.variants.iter().map(|variant| info_of(base, variant))).collect()
    }

    /// Finds a served model by id or alias, loaded or not.
    pub fn info(&self, name: &str) -> Option<ModelInfo> {
        self.served().find(name).map(|(base, index)| info_of(base, &base.variants[index]))
    }

    /// The id of the served model with this id or alias.
    pub fn id(&self, name: &str) -> Option<String> {
        self.served().find(name).map(|(base, index)| base.variants[index].id.clone())
    }

    pub(crate) fn find(&self, name: &str) -> Result<(Arc<Base>, usize), RegistryError> {
        let served = self.served();
        let found = served.find(name).map(|(base, index)| (base.clone(), index));
        found.ok_or_else(|| self.not_found(name))
    }

    /// The error for a name that no served model has.
    pub fn not_found(&self, name: &str) -> RegistryError {
        let served = self.served();
        let names = served.bases.iter().flat_map(|base| &base.variants).flat_map(ModelEntry::names);
        RegistryError::NotFound { id: name.into(), near: config::nearest_model(names, name).map(str::to_owned) }
    }

    /// Leases a model that is loaded already, with its adapters. The fast path on the event loop.
    pub fn get_loaded(&self, name: &str) -> Option<Arc<Model>> {
        self.get_loaded_with(name, None)
    }

    /// Like [`Registry::get_loaded`]. `asked`: adapters in the place of those of the name.
    pub fn get_loaded_with(&self, name: &str, asked: Option<&[AdapterAsk]>) -> Option<Arc<Model>> {
        let found = self.find(name).ok()?;
        let (loaded, lease) = found.0.slot.lease()?;
        let model = leased(&loaded, found.1, Box::new(lease));
        let adapters = self.adapters_ready(&model.base, &self.choices(&found, asked).ok()?)?;
        Some(Arc::new(Model { adapters, ..model }))
    }

    /// Whether a model is loaded.
    pub fn is_loaded(&self, name: &str) -> bool {
        self.served().find(name).is_some_and(|(base, _)| base.slot.peek().is_some())
    }

    /// Leases a model by id or alias, and loads the model if needed. A model whose engine has died is loaded again. Blocks: call it off the
    /// event loop.
    pub fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Model>, RegistryError> {
        let (mut found, deadline) = (self.find(name)?, self.deadline());
        loop {
            let got = self.get_from(name, &found, deadline);
            match self.successor(name, &found, &got) {
                Some(next) => found = next,
                None => {
                    let (model, choices) = (got?, self.choices(&found, None)?);
                    let adapters = self.read_adapters_blocking(&model.base, &choices, deadline)?;
                    return Ok(Arc::new(Model { adapters, ..model }));
                }
            }
        }
    }

    fn get_from(self: &Arc<Self>, name: &str, found: &(Arc<Base>, usize), deadline: Instant) -> Result<Model, RegistryError> {
        let (base, index) = found;
        loop {
            match self.begin(base)? {
                LoadAction::Ready(loaded, lease) => return Ok(leased(&loaded, *index, Box::new(lease))),
                LoadAction::Load(dead) => {
                    self.load(base, dead, deadline, false);
                    continue;
                }
                _ => base.slot.wait(deadline.saturating_duration_since(Instant::now())),
            }
            if Instant::now() >= deadline {
                return Err(RegistryError::Loading(name.into()));
            }
        }
    }

    /// Leases a model to a request. If needed, the request waits in a bounded queue, for memory and for the load.
    pub async fn acquire(self: &Arc<Self>, name: &str) -> Result<Arc<Model>, RegistryError> {
        self.acquire_with(name, None).await
    }

    /// Like [`Registry::acquire`]. `asked`: adapters in the place of those of the name.
    pub async fn acquire_with(self: &Arc<Self>, name: &str, asked: Option<&[AdapterAsk]>) -> Result<Arc<Model>, RegistryError> {
        let (mut found, deadline) = (self.find(name)?, self.deadline());
        // Nothing is loaded for a request that will be refused.
        self.choices(&found, asked)?;
        loop {
            let got = self.acquire_from(name, &found, deadline).await;
            match self.successor(name, &found, &got) {
                Some(next) => found = next,
                None => {
                    let (model, choices) = (got?, self.choices(&found, asked)?);
                    let adapters = self.read_adapters(&model.base, &choices, deadline).await?;
                    return Ok(Arc::new(Model { adapters, ..model }));
                }
            }
        }
    }

    /// What the name leads to now, if a request has failed because the model that it had found was replaced meanwhile.
    fn successor(&self, name: &str, found: &(Arc<Base>, usize), got: &Result<Model, RegistryError>) -> Option<(Arc<Base>, usize)> {
        let has_failed = matches!(got, Err(RegistryError::LoadFailed { .. }));
        has_failed.then(|| self.find(name).ok()).flatten().filter(|(base, _)| !Arc::ptr_eq(base, &found.0))
    }

    async fn acquire_from(self: &Arc<Self>, name: &str, found: &(Arc<Base>, usize), deadline: Instant) -> Result<Model, RegistryError> {
        let ((base, index), most) = (found, self.patience().most);
        let mut changes = base.slot.changes();
        let mut place = None;
        loop {
            changes.borrow_and_update();
            match self.begin(base)? {
                LoadAction::Ready(loaded, lease) => return Ok(leased(&loaded, *index, Box::new(lease))),
                LoadAction::Load(dead) => {
                    let (registry, base_to_load) = (self.clone(), base.clone());
                    // The load continues if the client leaves, because others may wait for it.
                    let load = move || registry.load(&base_to_load, dead, deadline, true);
                    if std::thread::Builder::new().name("load".into()).spawn(load).is_err() {
                        let cause = "no thread can be started".to_owned();
                        base.slot.settle(Err(LoadFault::Failed(cause.clone())));
                        return Err(RegistryError::LoadFailed { id: name.into(), cause });
                    }
                }
                _ => {}
            }
            if place.is_none() {
                place = Some(base.slot.wait_in_line(most).ok_or_else(|| RegistryError::QueueFull(name.into()))?);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || tokio::time::timeout(left, changes.changed()).await.is_err() {
                return Err(RegistryError::Loading(name.into()));
            }
        }
    }

    fn patience(&self) -> Patience {
        let config = self.settings();
        Patience { wait: Duration::from_secs(config.server.model_wait_seconds), most: config.limits.max_queue }
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.patience().wait
    }

    /// Begins a request for a base model.
    ///
    /// # Errors
    /// The model cannot be loaded, and waiting does not help.
    fn begin(&self, base: &Base) -> Result<LoadAction<Loaded>, RegistryError> {
        let id = || base.id().to_owned();
        if base.slot.died().is_some_and(|loaded| loaded.is_lost()) {
            return Err(RegistryError::LoadFailed { id: id(), cause: "its device is lost: restart the process".into() });
        }
        match base.slot.begin() {
            LoadAction::Failed(LoadFault::NoRoom(_)) => Err(RegistryError::NoRoom(id())),
            LoadAction::Failed(LoadFault::Failed(cause)) => Err(RegistryError::LoadFailed { id: id(), cause }),
            LoadAction::Stopped => Err(RegistryError::LoadFailed { id: id(), cause: "the server is shutting down".into() }),
            begin => Ok(begin),
        }
    }

    /// Loads a base model and settles its slot. Blocks. `logs`: whether to log a failure, because the caller does not report its cause.
    fn load(&self, base: &Arc<Base>, dead: Option<Arc<Loaded>>, deadline: Instant, logs: bool) {
        self.events.send(base.id(), ModelEventKind::ModelState(ModelState::Loading));
        if let Some(dead) = dead {
            // Free the memory of the dead model for the new one.
            dead.end();
        }
        let config = self.settings();
        let admission = LoadAdmission {
            turn: LoadLock::take(&self.turn),
            server: &config.server,
            base,
            all: &|| self.all(),
            unload: &|base, reason| self.unload_base(base, false, reason).is_ok(),
            baselines: &self.baselines,
            notifier: &self.notifier,
            deadline,
        };
        let outcome = self.load_into(base, &config, &admission);
        if matches!(outcome, Err(LoadFault::Failed(_))) {
            // If the model was replaced or removed, waiting requests find its successor.
            self.follow_store();
        }
        match &outcome {
            Err(LoadFault::NoRoom(cause)) if logs => tracing::warn!("the model `{}` could not be loaded: {cause}", base.id()),
            Err(LoadFault::Failed(cause)) if logs => {
                tracing::error!("the model `{}` could not be loaded: {}", base.id(), cause.escape_debug())
            }
            _ => {}
        }
        let state = if outcome.is_ok() { ModelState::Loaded } else { ModelState::Failed };
        let late = base.slot.settle(outcome);
        // Release the load lock only now, so that the next load sees the memory of this model.
        drop(admission);
        if let Some(loaded) = late {
            loaded.stop();
        }
        self.events.send(base.id(), ModelEventKind::ModelState(state));
    }

    fn load_into(&self, base: &Base, config: &Config, admission: &LoadAdmission) -> Result<Loaded, LoadFault> {
        let entry = &base.entry;
        let missing = || LoadFault::Failed(self.store.why_missing(entry));
        let path = self.store.path(entry).ok_or_else(missing)?;
        let (metrics, start) = (ModelMetrics::for_model(&entry.id), Instant::now());
        let load = || (self.load)(config, base, &path, admission);
        let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(load));
        let loaded = loaded.unwrap_or_else(|panic| Err(anyhow::anyhow!(panic_text(&*panic)))).map_err(|error| fault(&error));
        match &loaded {
            Ok(_) => metrics.model_load_seconds.observe(start.elapsed().as_secs_f64()),
            Err(LoadFault::Failed(_)) => metrics.model_load_failures_total.inc(),
            Err(LoadFault::NoRoom(_)) => {}
        }
        loaded
    }

    /// Unloads a base model and waits until its memory is free.
    pub(crate) fn unload_base(&self, base: &Base, force: bool, reason: UnloadReason) -> Result<(), super::load_slot::UnloadError> {
        let loaded = base.slot.unload(force)?;
        loaded.end();
        drop(loaded);
        ModelMetrics::for_model(base.id()).rest();
        metrics::count_unload(reason.name());
        tracing::info!("{}: unloaded ({})", base.id(), reason.name());
        self.events.send(base.id(), ModelEventKind::ModelState(ModelState::Unloaded));
        self.notifier.ring();
        Ok(())
    }

    /// Whether every eager model is loaded or was loaded once.
    pub fn is_ready(&self) -> bool {
        *lock(&self.was_ready) || self.served().bases.iter().filter(|base| base.eager).all(|base| base.slot.peek().is_some())
    }

    /// Whether any engine has died and its model is not loaded again yet.
    pub fn has_dead_engine(&self) -> bool {
        self.served().bases.iter().any(|base| base.slot.died().is_some())
    }

    /// The replicas that have left models whose others serve on, by the model's id.
    pub fn lost_replicas(&self) -> Vec<(String, ReplicaStatus)> {
        let of_base = |base: &Arc<Base>| {
            let replicas = base.slot.peek().map(|loaded| loaded.replicas()).unwrap_or_default();
            let id = base.id().to_owned();
            replicas.into_iter().filter(|replica| !replica.serves).map(move |replica| (id.clone(), replica))
        };
        self.served().bases.iter().flat_map(of_base).collect()
    }

    /// Whether each replica of the loaded models serves, by the model's id.
    pub fn replicas(&self) -> Vec<(String, Vec<bool>)> {
        let of_base = |base: &Arc<Base>| {
            let (loaded, _) = base.slot.loaded()?;
            Some((base.id().to_owned(), loaded.replicas().iter().map(|replica| replica.serves).collect()))
        };
        self.served().bases.iter().filter_map(of_base).collect()
    }

    /// Stops every engine thread.
    pub fn stop(&self) {
        let stopped: Vec<_> = self.all().into_iter().filter_map(|base| base.slot.stop()).collect();
        stopped.iter().for_each(|loaded| loaded.stop());
        stopped.iter().flat_map(|loaded| &loaded.models).for_each(|model| model.base.handle.wait_saved());
    }
}

fn leased(loaded: &Loaded, index: usize, lease: serving::Lease) -> Model {
    loaded.models[index].leased(lease)
}

pub(crate) fn info_of(base: &Base, variant: &ModelEntry) -> ModelInfo {
    let loaded = base.slot.peek();
    let model = loaded.as_ref().and_then(|loaded| loaded.models.iter().find(|model| model.id == variant.id));
    let context = loaded.as_ref().map(|loaded| loaded.context);
    ModelInfo {
        id: variant.id.clone(),
        created: base.created,
        context: context.or_else(|| variant.served_context()).map(|served| variant.context_within(served)),
        loaded: loaded.is_some(),
        root: variant.stored_as().to_owned(),
        parent: variant.parent().map(str::to_owned),
        adapter: variant.adapter.clone(),
        sampling: model.map(|model| model.sampling),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("internal error: {}", text.unwrap_or("a panic while loading"))
}
