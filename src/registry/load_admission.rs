//! Memory for models: decides whether another model fits, and which one to unload if it does not.
//!
//! A model's memory is estimated before the load. On a device that allocates memory at once (a GPU), it is measured after the load. On
//! others the estimate is kept, because the system makes pages resident only when they are touched, so that free memory says little about
//! what is already promised.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::base::Base;
use super::load_slot::LoadFault;
use super::notifier::Notifier;
use config::Server;
use engine::Need;

/// Why a model is unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnloadReason {
    /// The model was not used for a while.
    Idle,
    /// Another model needs its memory.
    Memory,
    /// An operator requested it.
    Request,
    /// The configuration no longer has the model.
    Removed,
}

impl UnloadReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Memory => "memory",
            Self::Request => "request",
            Self::Removed => "removed",
        }
    }
}

/// Free memory of each device before any model was loaded on it [bytes].
#[derive(Default)]
pub struct Baselines(Mutex<HashMap<String, u64>>);

/// The right to load, which one thread has at a time. Two loads at once would both count on the same free memory.
pub struct LoadLock<'a> {
    mutex: &'a Mutex<()>,
    guard: RefCell<Option<MutexGuard<'a, ()>>>,
}

impl<'a> LoadLock<'a> {
    pub fn take(mutex: &'a Mutex<()>) -> Self {
        let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Self { mutex, guard: RefCell::new(Some(guard)) }
    }

    /// Releases the lock while `wait` runs, so that other loads can go first.
    fn pause(&self, wait: impl FnOnce()) {
        self.guard.take();
        wait();
        self.guard.replace(Some(self.mutex.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

/// Admits one load: waits for memory, and unloads other models to get it.
pub struct LoadAdmission<'a> {
    pub turn: LoadLock<'a>,
    pub server: &'a Server,
    /// The model to load.
    pub base: &'a Base,
    /// Every model that may be loaded.
    pub all: &'a dyn Fn() -> Vec<Arc<Base>>,
    /// Unloads an unused model. False if a request uses it by now.
    pub unload: &'a dyn Fn(&Base, UnloadReason) -> bool,
    pub baselines: &'a Baselines,
    pub notifier: &'a Notifier,
    /// When the waiting requests give up.
    pub deadline: Instant,
}

/// A loaded model, which takes memory.
struct ResidentModel {
    base: Arc<Base>,
    /// On all its devices [bytes].
    bytes: u64,
    /// On the device in question [bytes].
    on_device: u64,
    /// The part of its KV cache that can be given back at once [bytes].
    idle_cache: u64,
    last: Instant,
    /// Whether the model may be unloaded.
    is_free: bool,
}

impl LoadAdmission<'_> {
    /// Waits until a model that needs `need` fits, and unloads other models if necessary. If no other model is loaded, the model is assumed
    /// to fit, because the engine itself refuses a model that is too large. `elsewhere`: what the model needs on other devices [bytes].
    /// `free`: measures the device's free memory [bytes].
    ///
    /// # Errors
    /// A limit excludes the model, or the models in use leave no room until the deadline.
    pub fn make(&self, need: &Need, elsewhere: u64, free: &dyn Fn() -> Option<u64>) -> anyhow::Result<()> {
        let limit = self.server.model_memory_bytes;
        let total = need.total().saturating_add(elsewhere);
        if limit > 0 && total > limit {
            anyhow::bail!("it needs {total} bytes, and server.model_memory_bytes is {limit}");
        }
        loop {
            let seen = self.notifier.count();
            let held = self.held(&need.device);
            let now = free();
            if held.iter().all(|held| held.on_device == 0) {
                self.baselines.note(need, now);
            }
            let Some(shortage) = self.shortage((need, total), now, &held) else { return Ok(()) };
            let victim = held.iter().filter(|held| held.is_free).min_by_key(|held| held.last);
            if let Some(victim) = victim {
                (self.unload)(&victim.base, UnloadReason::Memory);
                continue;
            }
            if held.iter().all(|held| held.base.is_pinned()) {
                return Err(InsufficientMemory(format!("{shortage}, and the loaded models are pinned")).into());
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(InsufficientMemory(format!("{shortage}, and the loaded models are in use")).into());
            }
            self.turn.pause(|| self.notifier.wait(seen, left));
        }
    }

    /// The other loaded models. `device`: the device in question.
    fn held(&self, device: &str) -> Vec<ResidentModel> {
        let of = |base: Arc<Base>| {
            let (loaded, usage) = base.slot.loaded()?;
            let is_free = usage.num_leases() == 0 && base.slot.num_waiting() == 0 && !base.is_pinned();
            let (bytes, on_device) = (loaded.bytes().total(), loaded.bytes_on(device));
            Some(ResidentModel { bytes, on_device, idle_cache: loaded.idle_cache(), last: usage.last().instant, is_free, base })
        };
        (self.all)().into_iter().filter(|other| !std::ptr::eq(&**other, self.base)).filter_map(of).collect()
    }

    /// The reason why the model does not fit besides the others. None if it fits.
    fn shortage(&self, (need, total): (&Need, u64), free: Option<u64>, held: &[ResidentModel]) -> Option<String> {
        let (most, limit) = (self.server.max_loaded_models, self.server.model_memory_bytes);
        if most > 0 && held.len() >= most {
            return Some(format!("server.max_loaded_models is {most}"));
        }
        let taken = held.iter().map(|held| held.bytes).fold(total, u64::saturating_add);
        if limit > 0 && taken > limit {
            return Some(format!("with it, models take {taken} bytes, and server.model_memory_bytes is {limit}"));
        }
        if held.is_empty() || limit > 0 {
            return None;
        }
        // The engine asks for the idle memory of other caches before it opens.
        let there = held.iter().filter(|held| held.on_device > 0);
        let on_device = there.clone().map(|held| held.on_device).fold(0, u64::saturating_add);
        let idle = there.map(|held| held.idle_cache).fold(0, u64::saturating_add);
        let free = free?.saturating_add(idle).min(self.baselines.of(&need.device)?.saturating_sub(on_device));
        (need.total() > free).then(|| format!("it needs {} bytes, and {} has {free} left", need.total(), need.device))
    }
}

impl Baselines {
    /// Remembers the device's free memory while no model is loaded.
    fn note(&self, need: &Need, free: Option<u64>) {
        let Some(free) = free else { return };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(need.device.clone(), free);
    }

    fn of(&self, device: &str) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(device).copied()
    }
}

/// The models in use leave too little memory for another one.
#[derive(Debug, thiserror::Error)]
#[error("there is no room for it: {0}")]
pub struct InsufficientMemory(String);

/// The fault that ended a load.
pub fn fault(error: &anyhow::Error) -> LoadFault {
    match error.downcast_ref::<InsufficientMemory>() {
        Some(no_room) => LoadFault::NoRoom(no_room.to_string()),
        None => LoadFault::Failed(format!("{error:#}")),
    }
}
