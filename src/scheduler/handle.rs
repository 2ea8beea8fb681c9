//! Handles to the engine thread: sequences go in, and their events come out.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::channel::{EventReceiver, channel};
use crate::client::Client;
use crate::disk_tier::SavedPrefixes;
use crate::engine_thread::{self, Command, STOPPED};
use crate::event::Event;
use crate::guesser::Engines;
use crate::new_sequence::NewSequence;
use crate::options::SchedulerOptions;
use crate::progress::Progress;
use crate::queue_permits::{QueuePermit, QueuePermits};
use crate::sequence::Sequence;
use crate::shared::{QueueLimit, QueueSize, Shared};
use crate::shared_device::{MemoryRequest, SharedDevice};
use crate::step::Scheduler;
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

/// The bytes of a model's KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    /// In use by running sequences.
    pub used: u64,
    /// Backed by memory.
    pub backed: u64,
    /// The most that the cache may grow to.
    pub most: u64,
}

/// The device that a model runs on, and its share of it.
pub struct DeviceShare {
    pub device: Arc<SharedDevice>,
    /// The model's weight when the device's time and memory are divided among models.
    pub share: f64,
    /// Time without requests after which the model gives back the memory of cached prompts.
    pub cache_idle: Duration,
}

/// A handle to a running engine thread. Clones share the thread. The thread ends when `stop` is called or every handle is dropped. Before
/// it ends, it tells the clients of its sequences.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    /// Disconnected once the engine thread has ended and its engine was dropped.
    ended: Receiver<()>,
    /// Whether a watchdog runs, which needs the list of clients.
    watched: bool,
    /// Whether the engine thread saves contents of its cache when it ends.
    saves: bool,
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
        // The channel itself is unbounded. Permits bound what it can hold.
        let (commands, receiver) = crossbeam_channel::unbounded();
        let tokens = match options.max_waiting_tokens {
            0 => engines.engine.kv_capacity().max_tokens().saturating_mul(16).max(options.max_waiting.saturating_mul(64)),
            tokens => tokens,
        };
        let shared = Arc::new(Shared::new(QueueSize { places: options.max_waiting, tokens }));
        let (running, ended) = crossbeam_channel::bounded(0);
        let handle = Self { shared: shared.clone(), commands, ended, watched: watchdog.is_some(), saves: saved.is_some() };
        let device = share.map(|share| (share.device.join(share.share), share.cache_idle));
        let run = move || {
            let mut scheduler = Scheduler::new(engines, options, metrics);
            if let Some(saved) = saved {
                scheduler.save_prefixes(saved);
            }
            engine_thread::run(scheduler, receiver, shared, watchdog, device);
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(run) {
            tracing::error!("the engine thread did not start: {error}");
            handle.shared.close();
        }
        handle
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
    /// [`EnqueueError::Stopped`] if the engine thread has ended.
    pub fn request(&self, client: Client, prompts: impl IntoIterator<Item = usize>) -> Result<RequestHandle<'_>, EnqueueError> {
        if !self.is_alive() {
            return Err(EnqueueError::Stopped);
        }
        let permits = QueuePermits::take(&self.shared, client, prompts)?;
        Ok(RequestHandle { handle: self, permits })
    }

    fn send(&self, sequence: NewSequence, permit: QueuePermit) -> Result<EventStream, EnqueueError> {
        let (sender, events) = channel();
        let sender = Arc::new(sender);
        if self.watched {
            self.shared.add_client(&sender);
        }
        let sequence = Box::new(Sequence::new(sequence, sender, permit));
        let progress = sequence.timeline.progress().clone();
        self.commands.send(Command::Enqueue(sequence)).map_err(|_| EnqueueError::Stopped)?;
        Ok(EventStream { events, progress, ended: false })
    }

    /// Whether the engine thread accepts sequences. False once the thread has failed or stopped.
    pub fn is_alive(&self) -> bool {
        self.shared.is_alive()
    }

    /// Whether the device is lost or stuck. Only a new process cures that, and loading the model again does not.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// The reason why the queue has no room for another request of a client, however small. None if it has room.
    pub fn full(&self, client: Client) -> Option<EnqueueError> {
        self.shared.full(client.tenant).map(EnqueueError::from)
    }

    /// Number of sequences that wait or run. Used for eviction and draining.
    pub fn num_active(&self) -> usize {
        self.shared.num_active()
    }

    /// Waits until the engine thread has ended and its engine has given back its memory. False if that takes longer than `patience`.
    pub fn wait_ended(&self, patience: Duration) -> bool {
        self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }

    /// Waits until the contents of the cache are saved, if they are to be. The engine thread must have been stopped.
    pub fn wait_saved(&self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        if self.saves && !self.wait_ended(PATIENCE) {
            tracing::warn!("the last prompts are not saved to cache.folder: the disk is slow");
        }
    }

    /// The sizes of the KV cache.
    pub fn cache(&self) -> CacheBytes {
        let [used, backed, most] = self.shared.cache_bytes();
        CacheBytes { used, backed, most }
    }

    /// Asks the engine thread to give back up to `bytes` bytes of its KV cache that no running sequence needs. Cached contents of prompts
    /// are evicted, too. Waits for the current step, but not longer than `patience`. Returns the number of bytes given back.
    pub fn give_back(&self, bytes: u64, patience: Duration) -> u64 {
        let (reply, given) = crossbeam_channel::bounded(1);
        if !self.is_alive() || self.commands.send(Command::GiveBack(MemoryRequest { bytes, preempts: false, reply: Some(reply) })).is_err()
        {
            return 0;
        }
        given.recv_timeout(patience).unwrap_or(0)
    }

    /// Ends the engine thread after its current step, without waiting for it. Every waiting or running sequence gets [`Event::Failed`].
    pub fn stop(&self) {
        self.shared.close();
        // The send fails if the thread has ended already.
        let _ = self.commands.send(Command::Stop);
    }
}

/// A request with reserved queue room. Its sequences are enqueued through this handle.
pub struct RequestHandle<'a> {
    handle: &'a Handle,
    permits: QueuePermits,
}

impl RequestHandle<'_> {
    /// The one hop down: hands a sequence to the engine thread.
    ///
    /// # Errors
    /// [`EnqueueError::Stopped`] if the engine thread has ended. [`EnqueueError::QueueFull`] if all announced sequences are enqueued
    /// already.
    pub fn enqueue(&mut self, sequence: NewSequence) -> Result<EventStream, EnqueueError> {
        let permit = self.permits.next().ok_or(EnqueueError::QueueFull)?;
        self.handle.send(sequence, permit)
    }
}

/// The events of one sequence. Dropping the stream cancels the sequence at the next step.
pub struct EventStream {
    events: EventReceiver,
    progress: Arc<Progress>,
    ended: bool,
}

impl EventStream {
    /// The next event. None after the last event. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.next().await;
        Some(self.note(event))
    }

    /// Like [`EventStream::next`], outside async code.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.events.blocking_next();
        Some(self.note(event))
    }

    /// Number of prompt tokens that the prefix cache held. Known once the first event has arrived, for callers that drop the stream early.
    pub fn cached_tokens(&self) -> u32 {
        self.progress.cached_tokens()
    }

    /// The sequence's times and token counts so far.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Notes whether an event is the last one. A channel that closes without a last event means that the engine thread has ended, which
    /// becomes [`Event::Failed`].
    fn note(&mut self, event: Option<Event>) -> Event {
        let event = event.unwrap_or_else(|| Event::Failed(STOPPED.to_owned()));
        self.ended = event.is_last();
        event
    }
}

#[cfg(test)]
#[path = "handle_tests.rs"]
mod tests;
