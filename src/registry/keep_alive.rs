//! Requests that set how long a model stays loaded.

use std::time::{Duration, SystemTime};

use super::base::Base;
use super::error::RegistryError;
use super::load_admission::UnloadReason;
use super::load_slot::{LoadPhase, UnloadError};
use super::registry::Registry;
use super::usage::{KeepAlive, Usage};

impl Base {
    /// Time without a request after which the model is unloaded. None: never. `default_minutes`: the configuration's value for all models.
    pub(crate) fn idle_time_of(&self, usage: &Usage, default_minutes: f64) -> Option<Duration> {
        match usage.keep() {
            _ if self.is_pinned() => None,
            None => self.idle_time(default_minutes),
            Some(KeepAlive::Forever) => None,
            Some(KeepAlive::For(time)) => Some(time),
        }
    }
}

impl Registry {
    /// Sets how long a loaded model stays loaded. A later request or load may change that. A pinned model always stays.
    pub fn keep(&self, name: &str, keep: KeepAlive) {
        let loaded = self.find(name).ok().and_then(|(base, _)| base.slot.loaded());
        if let Some((_, usage)) = loaded {
            usage.set_keep(keep);
        }
    }

    /// Unloads a model now, or once the requests that use it have ended. Does nothing if the model is not loaded.
    ///
    /// # Errors
    /// The model is unknown, being loaded or pinned.
    pub fn release(&self, name: &str) -> Result<(), RegistryError> {
        let (base, index) = self.find(name)?;
        if base.is_pinned() {
            return Err(RegistryError::Pinned(base.variants[index].id.clone()));
        }
        self.keep(name, KeepAlive::For(Duration::ZERO));
        if matches!(base.slot.phase(), LoadPhase::Empty | LoadPhase::Failed) {
            return Ok(());
        }
        match self.unload_base(&base, false, UnloadReason::Request) {
            Ok(()) | Err(UnloadError::NotLoaded | UnloadError::InUse(_)) => Ok(()),
            Err(UnloadError::Loading) => Err(RegistryError::Loading(name.into())),
        }
    }

    /// When a loaded model will be unloaded if no request uses it before. None: never, or the model is not loaded.
    pub fn expires(&self, name: &str) -> Option<SystemTime> {
        let (base, _) = self.find(name).ok()?;
        let (_, usage) = base.slot.loaded()?;
        let time = base.idle_time_of(&usage, self.settings().server.idle_unload_minutes)?;
        // A model in use counts as used now.
        let last = if usage.num_leases() > 0 { SystemTime::now() } else { usage.last().time };
        last.checked_add(time)
    }
}
