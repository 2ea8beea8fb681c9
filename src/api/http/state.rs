//! State that all HTTP workers share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use actix_web::web;
use tokio::sync::watch;

use super::cors::Cors;
use super::error::{ApiError, Kind};
use super::host::Hosts;
use super::keyring::Keyring;
use super::memory_budget::MemoryBudget;
use super::picture_url::UrlPolicy;
use config::{Config, Limits};
use registry::{AdapterAsk, Registry};
use serving::{Client, Model};

pub struct AppState {
    pub registry: Arc<Registry>,
    limits: RwLock<Arc<Limits>>,
    /// The memory budget for the bodies of all requests.
    pub bodies: Arc<MemoryBudget>,
    /// The silence after which a stream gets a keep-alive frame.
    pub keep_alive: Duration,
    pub hosts: Hosts,
    /// Which pictures are fetched from the web.
    pub picture_urls: UrlPolicy,
    pub cors: Cors,
    pub keys: Arc<Keyring>,
    pub drain: Drain,
    /// Whether `/metrics` repeats metrics under vLLM's names.
    pub vllm_metrics: bool,
    /// Whether `/` serves the chat page.
    pub chat_page: bool,
    /// Whether request bodies are logged.
    pub log_prompts: bool,
}

impl AppState {
    pub fn new(config: &Config, registry: Arc<Registry>, keys: Arc<Keyring>) -> Self {
        Self {
            registry,
            limits: RwLock::new(Arc::new(config.limits.clone())),
            bodies: MemoryBudget::new(config.limits.max_bodies_bytes),
            keep_alive: Duration::from_secs(config.server.keep_alive_seconds.max(1)),
            picture_urls: UrlPolicy::new(&config.server.picture_hosts),
            hosts: Hosts::new(config.server.host, &config.server.allowed_hosts),
            cors: Cors::new(&config.server.cors_origins, config.server.host),
            keys,
            drain: Drain::default(),
            vllm_metrics: config.server.vllm_metrics,
            chat_page: config.server.chat_page,
            log_prompts: config.server.log_prompts,
        }
    }

    /// The request limits, which can change while the server runs.
    pub fn limits(&self) -> Arc<Limits> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the limits after the configuration was read again. Limits that were used to build something at start keep their values.
    pub fn set_limits(&self, limits: &Limits) {
        let Limits { max_queue, max_queue_tokens, max_bodies_bytes, max_stored_responses, head_timeout_seconds, .. } = *self.limits();
        let limits = Limits { max_queue, max_queue_tokens, max_bodies_bytes, max_stored_responses, head_timeout_seconds, ..limits.clone() };
        *self.limits.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(limits);
    }

    /// Returns the model of a client's request, and waits for its load if necessary. `adapters`: those that the request has instead of the
    /// name's own.
    pub async fn model(state: &web::Data<Self>, id: &str, adapters: Option<&[AdapterAsk]>, client: Client) -> Result<Arc<Model>, ApiError> {
        let model = match state.registry.get_loaded_with(id, adapters) {
            Some(model) => model,
            None => Self::wait_for(state, id, adapters).await?,
        };
        if !model.base.handle.is_alive() {
            return Err(ApiError::new(Kind::EngineStopped, format!("the engine of `{}` has stopped", model.id)));
        }
        // Refuses the request before its prompt is encoded, which would take time.
        if let Some(full) = model.base.handle.full(client) {
            return Err(serving::SubmitError::from(full).into());
        }
        Ok(model)
    }

    /// Waits for a load. The request counts as active meanwhile, so a draining server waits for it.
    async fn wait_for(state: &web::Data<Self>, id: &str, adapters: Option<&[AdapterAsk]>) -> Result<Arc<Model>, ApiError> {
        let _active = ActiveGeneration::new(state.clone());
        tokio::select! {
            model = state.registry.acquire_with(id, adapters) => Ok(model?),
            // The load may outlast the process, and the client can ask another server.
            () = state.drain.when_draining() => Err(ApiError::new(Kind::Draining, "the server is shutting down")),
        }
    }
}

/// Runs `work` on a thread that may block. The work is boxed, so that the runtime's tasks are compiled once and not for every caller.
pub async fn off_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let result = Arc::new(Mutex::new(None));
    let slot = result.clone();
    let work: Box<dyn FnOnce() + Send> = Box::new(move || {
        let done = work();
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
    });
    let ended = web::block(work).await;
    let done = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    ended.ok().and(done).ok_or_else(|| ApiError::new(Kind::Internal, "a worker thread failed"))
}

/// Two-phase shutdown: the server first refuses new requests and then cuts the running ones.
pub struct Drain {
    draining: watch::Sender<bool>,
    active: AtomicUsize,
    cut: watch::Sender<bool>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { draining: watch::Sender::new(false), active: AtomicUsize::new(0), cut: watch::Sender::new(false) }
    }
}

impl Drain {
    pub fn start(&self) {
        self.draining.send_replace(true);
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Completes when the server starts to drain, or at once if it already does.
    pub async fn when_draining(&self) {
        is_set(&self.draining).await;
    }

    /// The number of generations that run for clients.
    pub fn num_active(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    /// Ends every running generation with an error.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Completes when [`Drain::cut`] is called, or at once if it was called before.
    pub async fn when_cut(&self) {
        is_set(&self.cut).await;
    }
}

async fn is_set(flag: &watch::Sender<bool>) {
    // Waiting fails only if the sender is dropped, and the caller holds the sender.
    let _ = flag.subscribe().wait_for(|is_set| *is_set).await;
}

/// Counts a generation as active until dropped.
pub struct ActiveGeneration(web::Data<AppState>);

impl ActiveGeneration {
    pub fn new(state: web::Data<AppState>) -> Self {
        state.drain.active.fetch_add(1, Ordering::SeqCst);
        Self(state)
    }

    pub fn state(&self) -> &AppState {
        &self.0
    }
}

impl Drop for ActiveGeneration {
    fn drop(&mut self) {
        self.0.drain.active.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use futures_util::future::{join, join_all};

    use super::*;
    use config::{ConfigSources, Overrides};

    #[actix_web::test]
    async fn a_bounded_number_of_requests_wait_for_a_load_and_the_rest_are_refused() {
        const MOST: usize = 64;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slow.gguf");
        std::fs::write(&path, b"GGUF").unwrap();
        let env = vec![("HOME".to_owned(), dir.path().display().to_string())];
        let mut config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        config.limits.max_queue = MOST;
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let load = Box::new(move |_: &Config, _: &registry::Base, _: &std::path::Path, _: &registry::LoadAdmission<'_>| {
            let _ = wait.lock().unwrap().recv();
            anyhow::bail!("a broken file")
        });
        let registry = Registry::with_loader(&config, &[path.display().to_string()], load).unwrap();
        let state = web::Data::new(AppState::new(&config, registry, Arc::new(Keyring::open(&config).unwrap())));
        let kind = |result: Result<Arc<Model>, ApiError>| result.err().unwrap().kind;
        let waiting = join_all((0..MOST).map(|_| AppState::wait_for(&state, "slow", None)));
        let late = async {
            while state.drain.num_active() < MOST {
                tokio::task::yield_now().await;
            }
            let late = join_all(["slow", "nope"].map(|id| AppState::wait_for(&state, id, None))).await;
            drop(go);
            late
        };
        let both = tokio::time::timeout(Duration::from_secs(60), join(waiting, late)).await;
        let (waited, late) = both.expect("the late requests are refused while the others wait");
        assert_eq!(late.into_iter().map(kind).collect::<Vec<_>>(), [Kind::QueueFull, Kind::ModelNotFound]);
        assert!(waited.into_iter().all(|result| kind(result) == Kind::ModelFailed));
        assert_eq!(state.drain.num_active(), 0);
    }

    #[actix_web::test]
    async fn a_cut_ends_earlier_and_later_waits() {
        let drain = Drain::default();
        let (_, ()) = futures_util::future::join(drain.when_cut(), async { drain.cut() }).await;
        drain.when_cut().await;
    }
}
