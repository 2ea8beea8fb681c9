//! What every HTTP worker shares.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::web;
use tokio::sync::{Semaphore, watch};

use super::error::{ApiError, Kind};
use super::store::ResponseStore;
use crate::config::{Config, Limits};
use crate::registry::{LoadedModel, Registry, RegistryError};

/// Requests that may wait for a load, each on a thread: the next ones are told to come again, so that threads are left for
/// models that are loaded and for `/metrics`.
const MAX_WAITING_FOR_LOAD: usize = 64;

pub struct AppState {
    pub registry: Arc<Registry>,
    pub limits: Limits,
    /// Silence after which a stream gets a comment.
    pub keep_alive: Duration,
    /// The address that is listened on: a loopback one gets requests for local names only.
    pub host: IpAddr,
    pub drain: Drain,
    /// `/metrics` with vLLM's names too.
    pub vllm_metrics: bool,
    /// The chat page at `/`.
    pub chat_page: bool,
    pub responses: ResponseStore,
    waiting_for_load: Arc<Semaphore>,
}

impl AppState {
    pub fn new(config: &Config, registry: Arc<Registry>) -> Self {
        Self {
            registry,
            limits: config.limits.clone(),
            keep_alive: Duration::from_secs(config.server.keep_alive_seconds.max(1)),
            host: config.server.host,
            drain: Drain::default(),
            vllm_metrics: config.server.vllm_metrics,
            chat_page: config.server.chat_page,
            responses: ResponseStore::new(config.limits.max_stored_responses),
            waiting_for_load: Arc::new(Semaphore::new(MAX_WAITING_FOR_LOAD)),
        }
    }

    /// The model of a request, loaded if it is not yet.
    pub async fn model(&self, id: &str) -> Result<Arc<LoadedModel>, ApiError> {
        let model = match self.registry.get_loaded(id) {
            Some(model) => model,
            None => self.load(id).await?,
        };
        if !model.handle.is_alive() {
            return Err(ApiError::new(Kind::EngineStopped, format!("the engine of `{}` has stopped", model.id)));
        }
        // Prompts are encoded before they are queued: a flood must be refused before it costs that.
        if model.handle.num_active() >= self.limits.max_queue + model.max_running {
            return Err(crate::serving::SubmitError::QueueFull.into());
        }
        Ok(model)
    }

    async fn load(&self, id: &str) -> Result<Arc<LoadedModel>, ApiError> {
        if self.registry.info(id).is_none() {
            return Err(RegistryError::NotFound(id.into()).into());
        }
        let place = self.waiting_for_load.clone().try_acquire_owned().map_err(|_| RegistryError::Loading(id.into()))?;
        let (registry, id) = (self.registry.clone(), id.to_owned());
        let loaded = off_loop(move || {
            // Held as long as the thread is, even where the client has gone.
            let _place = place;
            registry.get(&id)
        });
        Ok(loaded.await??)
    }
}

/// Runs `work` on a thread that may block.
pub async fn off_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    web::block(work).await.map_err(|_| ApiError::new(Kind::Internal, "a worker thread failed"))
}

/// The end of the process's life: first new requests are refused, then those that are left are cut.
pub struct Drain {
    draining: AtomicBool,
    active: AtomicUsize,
    cut: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { draining: AtomicBool::new(false), active: AtomicUsize::new(0), cut: watch::Sender::new(false) }
    }
}

impl Drain {
    pub fn start(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Generations that run for a client.
    pub fn num_active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// The deadline is over: every generation ends with an error.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Ends when [`Drain::cut`] is called.
    pub async fn when_cut(&self) {
        // The sender lives as long as `self`.
        let _ = self.cut.subscribe().wait_for(|cut| *cut).await;
    }
}

/// Counts a generation as active while it lives.
pub struct Active(web::Data<AppState>);

impl Active {
    pub fn new(state: web::Data<AppState>) -> Self {
        state.drain.active.fetch_add(1, Ordering::SeqCst);
        Self(state)
    }

    pub fn state(&self) -> &AppState {
        &self.0
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.drain.active.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use futures_util::future::{join, join_all};

    use super::*;
    use crate::config::{Overrides, Surroundings};

    #[actix_web::test]
    async fn some_wait_for_a_load_and_the_rest_are_told_to_come_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slow.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let config = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let load = Box::new(move |_: &Config, _: &_, _: &_| {
            let _ = wait.lock().unwrap().recv();
            anyhow::bail!("a broken file")
        });
        let state = AppState::new(&config, Registry::with_loader(&config, &[path.display().to_string()], load).unwrap());
        let waiting = join_all((0..MAX_WAITING_FOR_LOAD).map(|_| state.load("slow")));
        let late = async {
            while state.waiting_for_load.available_permits() > 0 {
                tokio::task::yield_now().await;
            }
            let kinds = ["slow", "nope"].map(|id| state.load(id));
            let kinds: Vec<_> = join_all(kinds).await.into_iter().map(|result| result.err().unwrap().kind).collect();
            drop(go);
            kinds
        };
        let (waited, late) = join(waiting, late).await;
        assert_eq!(late, [Kind::ModelLoading, Kind::ModelNotFound]);
        assert!(waited.into_iter().all(|result| result.err().unwrap().kind == Kind::ModelFailed));
        assert_eq!(state.waiting_for_load.available_permits(), MAX_WAITING_FOR_LOAD);
    }

    #[actix_web::test]
    async fn a_cut_reaches_those_who_wait_and_those_who_come_late() {
        let drain = Drain::default();
        let (_, ()) = futures_util::future::join(drain.when_cut(), async { drain.cut() }).await;
        drain.when_cut().await;
    }
}
