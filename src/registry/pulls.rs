//! Downloads at the request of a running server's clients.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::RegistryError;
use super::events::{ModelEventKind, ModelState};
use super::pull::{Pull, PullState, Waiting};
use super::registry::{Registry, lock};
use catalogue::{self, Progress, Tools};
use config::{ModelEntry, Source};

/// How often followers get a download's progress.
const PERIOD: Duration = Duration::from_millis(500);
/// The most downloads at once.
const MOST: usize = 4;

impl Registry {
    /// Fetches a model of the catalogue or of a hub in the background. If the model is being fetched already, returns that download.
    ///
    /// # Errors
    /// No model of this name can be fetched, or too many downloads are running.
    pub fn pull(self: &Arc<Self>, name: &str) -> Result<Arc<Pull>, RegistryError> {
        self.joined(name, true)
    }

    /// Like [`Registry::pull`], for clients that wait. If all of them leave, the download ends. The next pull resumes it.
    pub fn pull_while_waiting(self: &Arc<Self>, name: &str) -> Result<Waiting, RegistryError> {
        self.joined(name, false).map(Waiting)
    }

    fn joined(self: &Arc<Self>, name: &str, is_kept: bool) -> Result<Arc<Pull>, RegistryError> {
        let failed = |cause: String| RegistryError::PullFailed { id: name.into(), cause };
        // Clients must not learn which files this machine has.
        if name.starts_with(['.', '/', '~']) || name.contains("..") {
            return Err(failed("expected the name of a model, not a path".into()));
        }
        let entry = catalogue::resolve(&self.settings(), name).map_err(|error| match std::path::Path::new(name).exists() {
            true => failed("expected the name of a model, not a path".into()),
            false => failed(error.to_string()),
        })?;
        if entry.source == Source::Stored {
            return Err(failed("it was made on this server: there is nothing to fetch".into()));
        }
        if matches!(entry.source, Source::File { .. }) {
            return Err(failed("it is a local file: there is nothing to fetch".into()));
        }
        let id = entry.stored_as().to_owned();
        let mut pulls = lock(&self.pulls.0);
        if let Some(pull) = pulls.get(&id).filter(|pull| pull.join(is_kept)) {
            return Ok(pull.clone());
        }
        if pulls.len() + self.pulls.1.load(Ordering::Relaxed) >= MOST {
            return Err(RegistryError::QueueFull(id));
        }
        let pull = Arc::new(Pull::new(&id));
        pull.join(is_kept);
        let (registry, of_thread) = (self.clone(), pull.clone());
        let fetch = move || registry.fetch(&entry, &of_thread);
        std::thread::Builder::new().name("pull".into()).spawn(fetch).map_err(|error| failed(error.to_string()))?;
        if pulls.insert(id, pull.clone()).is_some() {
            self.pulls.1.fetch_add(1, Ordering::Relaxed);
        }
        Ok(pull)
    }

    /// Fetches a model and adds it to the list. Blocks.
    fn fetch(self: &Arc<Self>, entry: &ModelEntry, pull: &Arc<Pull>) {
        self.events.send(&pull.id, ModelEventKind::ModelState(ModelState::Downloading));
        let (registry, told) = (self.clone(), pull.clone());
        let tell = move || {
            while let PullState::Running { done, total } = told.state() {
                registry.events.send(&told.id, ModelEventKind::Progress { done, total });
                std::thread::sleep(PERIOD);
            }
        };
        // If the thread cannot start, followers get only the beginning and the end.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(tell);
        let pulled = self.store.pull(entry, &Tools::from_env(), &Progress::metered(pull.meter.clone()));
        if pull.meter.is_given_up() && pulled.is_err() {
            tracing::info!("the download of `{}` was given up: every client that waited for it has left", pull.id);
        } else if let Err(error) = &pulled {
            tracing::error!("the model `{}` could not be fetched: {}", pull.id, error.to_string().escape_debug());
        } else {
            self.follow_store();
        }
        let mut pulls = lock(&self.pulls.0);
        if pulls.get(&pull.id).is_some_and(|listed| Arc::ptr_eq(listed, pull)) {
            pulls.remove(&pull.id);
        } else {
            // This download was given up, and another one has replaced it.
            self.pulls.1.fetch_sub(1, Ordering::Relaxed);
        }
        drop(pulls);
        pull.end(pulled.is_ok());
        let state = if pulled.is_ok() { ModelState::Unloaded } else { ModelState::Failed };
        self.events.send(&pull.id, ModelEventKind::ModelState(state));
    }
}
