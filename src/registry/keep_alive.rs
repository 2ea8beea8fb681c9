//! How long a model stays loaded after its last request, where a request itself says so.

use std::time::{Duration, SystemTime};

use super::base::Base;
use super::error::RegistryError;
use super::load_admission::UnloadReason;
use super::load_slot::{LoadPhase, UnloadError};
use super::registry::Registry;
use super::usage::{KeepAlive, Usage};

impl Base {
    /// The time without a request after which this load ends. None: never. `default_minutes`: what the configuration says for all.
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
    /// Sets how long a loaded model stays, until a later request or load says otherwise. A pinned model stays whatever this says.
    pub fn keep(&self, name: &str, keep: KeepAlive) {
        let loaded = self.find(name).ok().and_then(|(base, _)| base.slot.loaded());
        if let Some((_, usage)) = loaded {
            usage.set_keep(keep);
        }
    }

    /// Unloads a model now, or once the requests that use it have ended. A model that is not loaded stays so.
    ///
    /// # Errors
    /// It is unknown, loading or pinned.
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

    /// When a loaded model is unloaded if nobody uses it until then. None: never, or it is not loaded.
    pub fn expires(&self, name: &str) -> Option<SystemTime> {
        let (base, _) = self.find(name).ok()?;
        let (_, usage) = base.slot.loaded()?;
        let time = base.idle_time_of(&usage, self.settings().server.idle_unload_minutes)?;
        // A model in use is used last now.
        let last = if usage.num_leases() > 0 { SystemTime::now() } else { usage.last().time };
        last.checked_add(time)
    }
}
