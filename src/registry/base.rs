//! Base models, their variants, and their loaded state.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::load_slot::LoadSlot;
use super::model_memory::ModelMemory;
use super::notifier::Notifier;
use config::ModelEntry;
use serving::{Model, ReplicaStatus};

/// A base model: weights that are loaded once for all their variants.
pub struct Base {
    /// The source of the weights, and the context that they are served with.
    pub entry: ModelEntry,
    /// The names that clients use, each with its own settings.
    pub variants: Vec<ModelEntry>,
    /// Whether the model is loaded at start rather than at the first request.
    pub eager: bool,
    /// When the file was written, or else when the server was started [Unix seconds].
    pub created: u64,
    pub slot: LoadSlot<Loaded>,
}

/// A loaded base model, with the models over it.
pub struct Loaded {
    /// The longest context served [tokens].
    pub context: usize,
    /// Memory on each of its devices, by the device's name.
    pub on_devices: Vec<(String, ModelMemory)>,
    /// The models, in the order of [`Base::variants`].
    pub models: Vec<Arc<Model>>,
}

/// Time that an engine may take to end after its last step.
const END: Duration = Duration::from_secs(30);

impl Base {
    pub fn new(entry: ModelEntry, variants: Vec<ModelEntry>, eager: bool, created: u64, notifier: Arc<Notifier>) -> Self {
        Self { entry, variants, eager, created, slot: LoadSlot::new(Loaded::is_alive, notifier) }
    }

    /// The index of the variant that answers to `name`.
    pub fn variant(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|variant| answers_to(variant, name))
    }

    /// The base model's name in logs and metrics.
    pub fn id(&self) -> &str {
        &self.entry.id
    }

    /// Whether the model is never unloaded, neither for memory nor because it is idle.
    pub fn is_pinned(&self) -> bool {
        self.variants.iter().any(|variant| variant.pinned)
    }

    /// Time without a request after which the model is unloaded. None: never. `default`: the configuration's value for all models
    /// [minutes].
    pub fn idle_time(&self, default: f64) -> Option<Duration> {
        let minutes = self.variants.iter().find_map(|variant| variant.idle_unload_minutes).unwrap_or(default);
        (minutes > 0.0 && !self.is_pinned()).then(|| Duration::from_secs_f64(60.0 * minutes))
    }

    /// Whether two bases serve the same names over the same weights.
    pub fn is_like(&self, other: &Self) -> bool {
        self.entry == other.entry && self.variants == other.variants
    }
}

pub fn answers_to(entry: &ModelEntry, name: &str) -> bool {
    entry.id == name || entry.aliases.iter().any(|alias| alias == name)
}

impl Loaded {
    pub fn is_alive(&self) -> bool {
        self.models.iter().all(|model| model.base.handle.is_alive())
    }

    /// Whether the engine's device is lost, so that only a new process can use it.
    pub fn is_lost(&self) -> bool {
        self.models.iter().any(|model| model.base.handle.is_lost())
    }

    /// Memory on all its devices.
    pub fn bytes(&self) -> ModelMemory {
        self.on_devices.iter().fold(ModelMemory::default(), |sum, (_, bytes)| sum.plus(*bytes))
    }

    /// Memory on the device of this name [bytes].
    pub fn bytes_on(&self, device: &str) -> u64 {
        self.on_devices.iter().filter(|(name, _)| name == device).map(|(_, bytes)| bytes.total()).fold(0, u64::saturating_add)
    }

    /// The part of the KV cache that could be given back at once, of all devices [bytes].
    pub fn idle_cache(&self) -> u64 {
        self.models.first().map_or(0, |model| {
            let cache = model.base.handle.cache();
            // The cache keeps its size at the load.
            cache.backed.saturating_sub(cache.used.max(self.bytes().cache))
        })
    }

    /// The state of each replica.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        self.models.first().map(|model| model.base.handle.replicas()).unwrap_or_default()
    }

    pub fn stop(&self) {
        self.models.iter().for_each(|model| model.base.handle.stop());
    }

    /// Ends the engine and waits until its memory is free.
    pub fn end(&self) {
        self.stop();
        for model in &self.models {
            if !model.base.handle.wait_ended(END) {
                tracing::warn!("{}: the engine has not ended after {} s", model.id, END.as_secs());
            }
        }
    }
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a file was last written [Unix seconds].
pub fn modified(path: &Path) -> Option<u64> {
    Some(unix_seconds(path.metadata().ok()?.modified().ok()?))
}
