//! The operators' view: the state of each model, events and unloads.

use super::base::Base;
use super::error::RegistryError;
use super::events::{ModelEventStream, ModelState};
use super::load_admission::UnloadReason;
use super::load_slot::{LoadPhase, UnloadError};
use super::model_memory::ModelMemory;
use super::pull::PullState;
use super::registry::{Registry, lock};
use config::ModelEntry;
use serving::ReplicaStatus;

/// The state of a model.
#[derive(Clone, Debug)]
pub struct ModelStatus {
    pub id: String,
    pub aliases: Vec<String>,
    /// The id of the model that the weights belong to.
    pub root: String,
    pub parent: Option<String>,
    pub state: ModelState,
    /// Time since the load began, if the model is being loaded [s].
    pub loading_seconds: Option<u64>,
    /// A download in progress, as (bytes received, bytes in total).
    pub download: Option<(u64, Option<u64>)>,
    /// Memory on the device. Names over the same base model share it.
    pub bytes: Option<ModelMemory>,
    pub context: Option<usize>,
    /// The replicas of a loaded model. Names over the same base model share them.
    pub replicas: Vec<ReplicaStatus>,
    pub backend: Option<&'static str>,
    /// How keys and values are stored.
    pub cache_type: Option<&'static str>,
    /// Numbers of requests that use the base model, and that wait for it. Names over the same base model share both.
    pub num_requests: usize,
    pub num_waiting: usize,
    /// Time of the last use since the load [Unix seconds].
    pub last_use: Option<u64>,
    pub pinned: bool,
}

impl Registry {
    /// Every model that is served or being fetched, in the order of the list.
    pub fn statuses(&self) -> Vec<ModelStatus> {
        let served = self.served();
        let mut all: Vec<_> = served.bases.iter().flat_map(|base| base.variants.iter().map(|variant| status(base, variant))).collect();
        for pull in self.pulls.list() {
            let PullState::Running { done, total } = pull.state() else { continue };
            let download = Some((done, total));
            match all.iter_mut().find(|status| status.root == pull.id) {
                // A loaded model is fetched again only to verify its files.
                Some(status) if status.state == ModelState::Loaded => {}
                Some(status) => (status.state, status.download) = (ModelState::Downloading, download),
                None => all.push(ModelStatus { download, ..ModelStatus::fetched(&pull.id) }),
            }
        }
        all
    }

    /// Unloads a model by id or alias, with every name over the same base model. `force`: whether to end its requests with an error.
    ///
    /// # Errors
    /// The model is unknown, not loaded, being loaded, or in use without `force`.
    pub fn unload(&self, name: &str, force: bool) -> Result<(), RegistryError> {
        let (base, index) = self.find(name)?;
        let id = base.variants[index].id.clone();
        self.unload_base(&base, force, UnloadReason::Request).map_err(|kept| match kept {
            UnloadError::NotLoaded => RegistryError::NotLoaded(id),
            UnloadError::Loading => RegistryError::Loading(id),
            UnloadError::InUse(num_requests) => RegistryError::InUse { id, num_requests },
        })
    }

    /// Subscribes to all later events of models.
    pub fn follow(&self) -> ModelEventStream {
        self.events.follow()
    }

    /// The number of loaded base models.
    pub fn num_loaded(&self) -> usize {
        let retired = lock(&self.retired).iter().filter(|base| base.slot.peek().is_some()).count();
        retired + self.served().bases.iter().filter(|base| base.slot.peek().is_some()).count()
    }
}

impl ModelStatus {
    /// The status of a model that is being fetched and not served yet.
    fn fetched(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            aliases: Vec::new(),
            root: id.to_owned(),
            parent: None,
            state: ModelState::Downloading,
            loading_seconds: None,
            download: None,
            bytes: None,
            context: None,
            replicas: Vec::new(),
            backend: None,
            cache_type: None,
            num_requests: 0,
            num_waiting: 0,
            last_use: None,
            pinned: false,
        }
    }
}

fn status(base: &Base, variant: &ModelEntry) -> ModelStatus {
    let (phase, loaded) = (base.slot.phase(), base.slot.loaded());
    let is_alive = loaded.as_ref().is_some_and(|(loaded, _)| loaded.is_alive());
    let state = match &phase {
        LoadPhase::Empty => ModelState::Unloaded,
        LoadPhase::Loading(_) => ModelState::Loading,
        LoadPhase::Ready if is_alive => ModelState::Loaded,
        LoadPhase::Ready | LoadPhase::Failed => ModelState::Failed,
    };
    let of_load = loaded.as_ref();
    let served = of_load.map(|(loaded, _)| loaded.context).or_else(|| variant.served_context());
    ModelStatus {
        aliases: variant.aliases.clone(),
        root: variant.stored_as().to_owned(),
        parent: variant.parent().map(str::to_owned),
        state,
        loading_seconds: if let LoadPhase::Loading(since) = phase { Some(since.as_secs()) } else { None },
        bytes: of_load.map(|(loaded, _)| loaded.bytes()),
        replicas: of_load.map(|(loaded, _)| loaded.replicas()).unwrap_or_default(),
        context: served.map(|served| variant.context_within(served)),
        backend: of_load.and_then(|(loaded, _)| Some(loaded.models.first()?.base.backend.name())),
        cache_type: of_load.and_then(|(loaded, _)| Some(loaded.models.first()?.base.cache_type.name())),
        num_requests: of_load.map_or(0, |(_, usage)| usage.num_leases()),
        num_waiting: base.slot.num_waiting(),
        last_use: of_load.map(|(_, usage)| super::base::unix_seconds(usage.last().time)),
        pinned: base.is_pinned(),
        ..ModelStatus::fetched(&variant.id)
    }
}
