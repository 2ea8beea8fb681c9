//! Periodic maintenance: unloads idle models, and updates the list from the store and the configuration.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::adapter_settings;
use super::base::Base;
use super::events::ModelEventKind;
use super::load_admission::UnloadReason;
use super::registry::{Registry, lock};
use super::served_models::ServedModels;
use config::Config;

/// How often idle models are checked.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the store is checked [periods].
const STORE_PERIODS: u64 = 5;
/// How often what is of no use is removed from the store [periods].
const CLEANING_PERIODS: u64 = 3600;

impl Registry {
    /// Starts the thread for periodic maintenance, which ends with the registry.
    pub fn spawn_janitor(self: &Arc<Self>) -> std::io::Result<()> {
        let registry = Arc::downgrade(self);
        std::thread::Builder::new().name("models".into()).spawn(move || run(&registry)).map(drop)
    }

    /// Unloads models that were unused for their idle time, and those that are not served any more.
    pub fn unload_idle(&self) {
        let default = self.settings().server.idle_unload_minutes;
        for base in &self.served().bases {
            let is_idle = |base: &Base| {
                let usage = base.slot.loaded().map(|(_, usage)| usage);
                let time = usage.as_ref().and_then(|usage| base.idle_time_of(usage, default));
                usage.zip(time).is_some_and(|(usage, time)| usage.num_leases() == 0 && usage.last().instant.elapsed() >= time)
            };
            if is_idle(base) {
                // Fails if a request has come just now. Then the model stays.
                let _ = self.unload_base(base, false, UnloadReason::Idle);
            }
        }
        // Models that are being loaded or in use are checked again later.
        let retired: Vec<Arc<Base>> = lock(&self.retired).clone();
        for base in retired {
            use super::load_slot::UnloadError;
            if matches!(self.unload_base(&base, false, UnloadReason::Removed), Ok(()) | Err(UnloadError::NotLoaded)) {
                lock(&self.retired).retain(|other| !Arc::ptr_eq(other, &base));
            }
        }
    }

    /// Updates the list with the models that are on disk now.
    pub fn follow_store(&self) {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(error) = self.serve_anew(&self.settings(), &named, false) {
            tracing::warn!("the list of models was not updated: {}", format!("{error:#}").escape_debug());
        }
    }

    /// Applies the models of a reloaded configuration, and the settings for loading them. Models that it no longer has are unloaded once no
    /// request uses them. Its other settings of engines need a restart.
    ///
    /// # Errors
    /// A name is unknown. Nothing changes then.
    pub fn reload(&self, config: &Config, named: &[String]) -> anyhow::Result<()> {
        let before = self.settings();
        let mut merged = config.clone();
        merged.engine = before.engine.clone();
        merged.server.models_dir.clone_from(&before.server.models_dir);
        merged.limits.max_queue = before.limits.max_queue;
        merged.limits.max_queue_tokens = before.limits.max_queue_tokens;
        self.serve_anew(&merged, named, true)?;
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(merged);
        *self.named.write().unwrap_or_else(PoisonError::into_inner) = named.to_vec();
        Ok(())
    }

    /// `checks`: whether mistakes of adapters are errors. Otherwise such an adapter is left out, or its first request reports them.
    fn serve_anew(&self, config: &Config, named: &[String], checks: bool) -> anyhow::Result<()> {
        let _listing = lock(&self.listing);
        let whole = self.with_added(config);
        let list = || -> anyhow::Result<_> {
            let next = ServedModels::new(&whole, &self.store, named, self.started, &self.notifier)?;
            if checks {
                adapter_settings::check(config, &self.store, &next, &catalogue::models(config, &self.store))?;
            }
            let (models, faults) = next.models_over(&self.served(), &self.store);
            Ok((next, models, faults))
        };
        let (mut next, mut models, mut faults) = list()?;
        if !faults.is_empty() {
            // A model may have been replaced since the list was made.
            (next, models, faults) = list()?;
        }
        for (id, error) in faults {
            // The next request loads the model, and reports what is wrong.
            tracing::warn!("the model `{id}` is loaded again: {}", format!("{error:#}").escape_debug());
        }
        let mut served = self.served.write().unwrap_or_else(PoisonError::into_inner);
        let gone = next.keep(&served, models);
        if next.is_like(&served) {
            return Ok(());
        }
        *served = Arc::new(next);
        // Extended while the list is locked, so that each model is always in one of the two.
        lock(&self.retired).extend(gone);
        drop(served);
        self.events.send("", ModelEventKind::Listed);
        Ok(())
    }
}

fn run(registry: &Weak<Registry>) {
    let mut next = Instant::now();
    for period in 1.. {
        next += PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let Some(registry) = registry.upgrade() else { return };
        registry.unload_idle();
        registry.adapters.sweep();
        if period % CLEANING_PERIODS == 1 {
            registry.store.remove_leftovers();
        }
        if period % STORE_PERIODS == 0 {
            registry.follow_store();
        }
    }
}
