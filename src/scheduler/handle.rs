//! Handles to the engine threads of a model: sequences go in, and each goes to one of the engines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::channel::channel;
use crate::client::Client;
use crate::disk_tier::SavedPrefixes;
use crate::engine_state::{ActiveSequence, EngineState};
use crate::guesser::Engines;
use crate::new_sequence::{NewSequence, SequenceGroup};
use crate::options::SchedulerOptions;
use crate::queue_permits::{QueuePermit, QueuePermits};
use crate::replica::{CacheBytes, DeviceShare, EventStream, Replica, ReplicaParts, ReplicaStatus};
use crate::routing::{Candidate, Router, choose, rows_of};
use crate::sequence::Sequence;
use crate::shared::{QueueLimit, QueueSize, Shared};
use crate::survivors::Survivors;
use crate::watchdog::Watchdog;
use engine::Engine;
use metrics::ModelMetrics;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    #[error("the queue has no place")]
    QueueFull,
    #[error("the queue has no room for the tokens")]
    TokensFull,
    #[error("the engine has stopped")]
    Stopped,
}

impl From<QueueLimit> for EnqueueError {
    fn from(full: QueueLimit) -> Self {
        match full {
            QueueLimit::Places => Self::QueueFull,
            QueueLimit::Tokens => Self::TokensFull,
        }
    }
}

/// A handle to the engine threads of a model, its *replicas*. Clones share the threads. They end when `stop` is called or every handle is
/// dropped. Before a thread ends, it tells the clients of its sequences.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    replicas: Arc<[Replica]>,
    /// None if there is one replica.
    router: Option<Arc<Router>>,
}

impl Handle {
    /// Starts the engine thread. If the system cannot start a thread, the handle refuses every sequence.
    pub fn spawn(engine: Box<dyn Engine>, options: SchedulerOptions, metrics: Arc<ModelMetrics>) -> Self {
        Self::spawn_on(engine.into(), options, metrics, None, (None, None))
    }

    /// Like [`Handle::spawn`], with a watchdog for an engine that may get stuck or lose its device.
    pub fn spawn_watched(
        engine: Box<dyn Engine>,
        options: SchedulerOptions,
        metrics: Arc<ModelMetrics>,
        watchdog: Option<Watchdog>,
    ) -> Self {
        Self::spawn_on(engine.into(), options, metrics, watchdog, (None, None))
    }

    /// Like [`Handle::spawn_watched`], on a device that other models may share, with a draft model if there is one, and with files for the
    /// prefix cache.
    pub fn spawn_on(
        engines: Engines,
        options: SchedulerOptions,
        metrics: Arc<ModelMetrics>,
        watchdog: Option<Watchdog>,
        (share, saved): (Option<DeviceShare>, Option<SavedPrefixes>),
    ) -> Self {
        let parts = ReplicaParts { engines: Some(engines), place: String::new(), share, saved };
        Self::spawn_replicas("", vec![parts], options, metrics, watchdog)
    }

    /// Starts the engine threads of a model. `name`: the model's name in the log. The replicas must compute the same. They share one queue,
    /// and each has a cache of its own.
    pub fn spawn_replicas(
        name: &str,
        replicas: Vec<ReplicaParts>,
        options: SchedulerOptions,
        metrics: Arc<ModelMetrics>,
        watchdog: Option<Watchdog>,
    ) -> Self {
        let capacity = |parts: &ReplicaParts| parts.engines.as_ref().map(|engines| engines.engine.kv_capacity());
        let tokens = match options.max_waiting_tokens {
            0 => {
                let cached: usize = replicas.iter().filter_map(capacity).map(|capacity| capacity.max_tokens()).sum();
                cached.saturating_mul(16).max(options.max_waiting.saturating_mul(64))
            }
            tokens => tokens,
        };
        let shared = Arc::new(Shared::new(QueueSize { places: options.max_waiting, tokens }));
        let router = (replicas.len() > 1).then(|| {
            let block_size = replicas.iter().find_map(capacity).filter(|_| options.prefix_cache).map(|capacity| capacity.block_size);
            Arc::new(Router::new(block_size, replicas.iter().map(|parts| capacity(parts).map_or(0, |capacity| capacity.num_blocks))))
        });
        let survivors = Arc::new(Survivors::new(name, replicas.len()));
        let start = |(number, parts): (usize, ReplicaParts)| {
            let device = parts.share.as_ref().map(|share| share.device.clone());
            let state = Arc::new(EngineState::new(number, device, survivors.clone(), router.clone()));
            Replica::start(parts, state, options.clone(), metrics.clone(), watchdog)
        };
        let replicas = replicas.into_iter().enumerate().map(start).collect();
        Self { shared, replicas, router }
    }

    /// Enqueues a request of one sequence, see [`Handle::request`].
    pub fn enqueue(&self, sequence: NewSequence) -> Result<EventStream, EnqueueError> {
        self.request(Client::default(), [sequence.prompt.len()])?.enqueue(sequence)
    }

    /// Reserves queue room for a request with several sequences. `prompts`: the number of tokens in each prompt. The sequences share the
    /// engine as one: rows that one of them computes count against all of them.
    ///
    /// # Errors
    /// [`EnqueueError::QueueFull`] or [`EnqueueError::TokensFull`] if the queue, or the client's part of it, has no room for the request.
    /// [`EnqueueError::Stopped`] if every engine thread has ended.
    pub fn request(&self, client: Client, prompts: impl IntoIterator<Item = usize>) -> Result<RequestHandle<'_>, EnqueueError> {
        if !self.is_alive() {
            return Err(EnqueueError::Stopped);
        }
        let permits = QueuePermits::take(&self.shared, client, prompts)?;
        Ok(RequestHandle { handle: self, permits, group: None })
    }

    /// Sends a sequence to a replica: to `preferred` while that takes sequences, otherwise to the one that the router chooses. Also returns
    /// the replica's index.
    fn send(&self, sequence: NewSequence, permit: QueuePermit, preferred: Option<usize>) -> Result<(EventStream, usize), EnqueueError> {
        let keys = self.router.as_ref().map(|router| router.keys(&sequence, &[])).unwrap_or_default();
        let (sender, events) = channel();
        let mut sequence = Box::new(Sequence::new(sequence, Arc::new(sender), permit));
        let progress = sequence.timeline.progress().clone();
        // Ends, because a replica that refuses a sequence takes none any more.
        loop {
            let (index, active) = self.choose(&sequence.asked, &keys, preferred).ok_or(EnqueueError::Stopped)?;
            let replica = &self.replicas[index];
            match replica.send(sequence, active) {
                Ok(()) => return Ok((EventStream::new(events, progress, replica.state().clone()), index)),
                Err(refused) => sequence = refused,
            }
        }
    }

    /// Chooses the replica of a sequence whose blocks have `keys`, and counts the sequence there. None if no replica takes sequences.
    fn choose(&self, sequence: &NewSequence, keys: &[u64], preferred: Option<usize>) -> Option<(usize, ActiveSequence)> {
        let Some(router) = &self.router else {
            let state = self.replicas[0].state();
            return state.is_alive().then(|| (0, state.enter(rows_of(sequence, 0))));
        };
        let mut known = router.lock();
        let candidate = |(index, replica): (usize, &Replica)| {
            let num_cached = router.num_cached(&known[index], keys, sequence.prompt.len());
            replica.state().is_alive().then(|| Candidate { num_rows: replica.state().num_rows(), num_cached })
        };
        let candidates: Vec<Option<Candidate>> = self.replicas.iter().enumerate().map(candidate).collect();
        let index = preferred.filter(|index| candidates[*index].is_some()).or_else(|| choose(&candidates))?;
        let num_cached = candidates[index].map_or(0, |chosen| chosen.num_cached);
        known[index].add(keys);
        // Counted under the lock, so that the next choice sees it.
        Some((index, self.replicas[index].state().enter(rows_of(sequence, num_cached))))
    }

    fn states(&self) -> impl Iterator<Item = &Arc<EngineState>> {
        self.replicas.iter().map(Replica::state)
    }

    /// Whether any engine thread accepts sequences. False once all have failed or stopped.
    pub fn is_alive(&self) -> bool {
        self.states().any(|state| state.is_alive())
    }

    /// Whether no engine is left, and a device is lost or stuck. Only a new process cures that, and loading the model again does not.
    pub fn is_lost(&self) -> bool {
        !self.is_alive() && self.states().any(|state| state.is_lost())
    }

    /// The state of each replica, for operators.
    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        self.replicas.iter().enumerate().map(|(number, replica)| replica.status(number)).collect()
    }

    /// The reason why the queue has no room for another request of a client, however small. None if it has room.
    pub fn full(&self, client: Client) -> Option<EnqueueError> {
        self.shared.full(client.tenant).map(EnqueueError::from)
    }

    /// Whether no sequence has room in the queue.
    #[cfg(test)]
    pub fn shared_is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Number of sequences that wait or run. Used for eviction and draining.
    pub fn num_active(&self) -> usize {
        self.replicas().iter().map(|replica| replica.num_active).sum()
    }

    /// Waits until the engine threads have ended and their engines have given back their memory. False if that takes longer than
    /// `patience`. A thread whose device is lost may never end, and is not waited for.
    pub fn wait_ended(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut waited = self.replicas.iter().filter(|replica| !replica.state().is_lost());
        waited.all(|replica| replica.wait_ended(deadline.saturating_duration_since(Instant::now())))
    }

    /// Waits until the contents of the caches are saved, if they are to be. The engine threads must have been stopped.
    pub fn wait_saved(&self) {
        self.replicas.iter().filter(|replica| !replica.state().is_lost()).for_each(Replica::wait_saved);
    }

    /// The sizes of the KV caches together.
    pub fn cache(&self) -> CacheBytes {
        let alive = self.states().filter(|state| state.is_alive()).map(|state| state.cache_bytes());
        let [used, backed, most] = alive.fold([0; 3], |sum: [u64; 3], one| [0, 1, 2].map(|kind| sum[kind].saturating_add(one[kind])));
        CacheBytes { used, backed, most }
    }

    /// Asks the engine threads to give back up to `bytes` bytes of their KV caches that no running sequence needs. Cached contents of
    /// prompts are evicted, too. Waits for the current steps, but not longer than `patience` for each. Returns the number of bytes given
    /// back.
    pub fn give_back(&self, bytes: u64, patience: Duration) -> u64 {
        self.replicas.iter().fold(0, |given, replica| given + replica.give_back(bytes.saturating_sub(given), patience))
    }

    /// Ends the engine threads after their current steps, without waiting for them. Every waiting or running sequence gets
    /// [`Event::Failed`](crate::Event::Failed).
    pub fn stop(&self) {
        // All are closed before the first ends, so that none takes the sequences of another.
        self.states().for_each(|state| state.close());
        self.replicas.iter().for_each(Replica::stop);
    }
}

/// A request with reserved queue room. Its sequences are enqueued through this handle.
pub struct RequestHandle<'a> {
    handle: &'a Handle,
    permits: QueuePermits,
    /// The sequence group of the last sequence, and the replica that it went to, which holds the group's prompt.
    group: Option<(SequenceGroup, usize)>,
}

impl RequestHandle<'_> {
    /// The one hop down: hands a sequence to an engine thread.
    ///
    /// # Errors
    /// [`EnqueueError::Stopped`] if every engine thread has ended. [`EnqueueError::QueueFull`] if all announced sequences are enqueued
    /// already.
    pub fn enqueue(&mut self, sequence: NewSequence) -> Result<EventStream, EnqueueError> {
        let permit = self.permits.next().ok_or(EnqueueError::QueueFull)?;
        let group = sequence.sequence_group;
        let preferred = self.group.filter(|(last, _)| group == Some(*last)).map(|(_, index)| index);
        let (stream, index) = self.handle.send(sequence, permit, preferred)?;
        self.group = group.map(|group| (group, index));
        Ok(stream)
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
