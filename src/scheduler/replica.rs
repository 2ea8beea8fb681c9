//! [`Replica`]: one engine thread of a model. Sequences go in, and their events come out.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use crate::channel::EventReceiver;
use crate::disk_tier::SavedPrefixes;
use crate::engine_fault::EngineFault;
use crate::engine_state::{ActiveSequence, EngineState};
use crate::engine_thread::{self, Command, STOPPED};
use crate::event::Event;
use crate::guesser::Engines;
use crate::options::SchedulerOptions;
use crate::progress::Progress;
use crate::sequence::Sequence;
use crate::shared_device::{MemoryRequest, SharedDevice};
use crate::step::Scheduler;
use crate::watchdog::Watchdog;
use metrics::ModelMetrics;

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

/// What a replica is made of.
pub struct ReplicaParts {
    /// None: its device was lost before the load, so it never serves.
    pub engines: Option<Engines>,
    /// The device's name for operators.
    pub place: String,
    /// The device, if other models may share it.
    pub share: Option<DeviceShare>,
    /// Files for the prefix cache.
    pub saved: Option<SavedPrefixes>,
}

/// The state of one replica, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica's number in its model, starting at 0.
    pub number: usize,
    pub place: String,
    /// Whether it takes sequences. False once it has left.
    pub serves: bool,
    /// Number of its sequences that wait or run.
    pub num_active: usize,
}

/// An engine thread.
pub struct Replica {
    state: Arc<EngineState>,
    place: String,
    commands: Sender<Command>,
    /// Disconnected once the engine thread has ended and its engine was dropped.
    ended: Receiver<()>,
    /// Whether a watchdog runs, which needs the list of clients.
    watched: bool,
    /// Whether the engine thread saves contents of its cache when it ends.
    saves: bool,
}

impl Replica {
    /// Starts the engine thread. If the system cannot start it, or if there is no engine, the replica takes no sequence.
    pub fn start(
        parts: ReplicaParts,
        state: Arc<EngineState>,
        options: SchedulerOptions,
        metrics: Arc<ModelMetrics>,
        watchdog: Option<Watchdog>,
    ) -> Self {
        let ReplicaParts { engines, place, share, saved } = parts;
        // The channel itself is unbounded. Permits bound what it can hold.
        let (commands, receiver) = crossbeam_channel::unbounded();
        let (running, ended) = crossbeam_channel::bounded(0);
        let replica = Self { state: state.clone(), place, commands, ended, watched: watchdog.is_some(), saves: saved.is_some() };
        let Some(engines) = engines else {
            state.lose();
            // Recorded, not reported: the caller starts no model without any engine.
            let _ = state.fail(Some(EngineFault::DeviceLost));
            return replica;
        };
        let device = share.map(|share| (share.device.join(share.share), share.cache_idle));
        let of_thread = state.clone();
        let run = move || {
            let mut scheduler = Scheduler::new(engines, options, metrics);
            if let Some(saved) = saved {
                scheduler.save_prefixes(saved);
            }
            engine_thread::run(scheduler, receiver, of_thread, watchdog, device);
            drop(running);
        };
        if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(run) {
            tracing::error!("the engine thread did not start: {error}");
            state.close();
        }
        replica
    }

    pub fn state(&self) -> &Arc<EngineState> {
        &self.state
    }

    pub fn status(&self, number: usize) -> ReplicaStatus {
        let num_active = if self.state.is_alive() { self.state.num_active() } else { 0 };
        ReplicaStatus { number, place: self.place.clone(), serves: self.state.is_alive(), num_active }
    }

    /// Hands a sequence to the engine thread.
    ///
    /// # Errors
    /// The engine thread has ended. Returns the sequence.
    pub fn send(&self, mut sequence: Box<Sequence>, active: ActiveSequence) -> Result<(), Box<Sequence>> {
        let client = self.watched.then(|| (Arc::downgrade(sequence.events()), Arc::downgrade(sequence.ticket())));
        sequence.count_at(active);
        self.commands.send(Command::Enqueue(sequence)).map_err(|refused| match refused.0 {
            Command::Enqueue(sequence) => sequence,
            Command::GiveBack(_) | Command::Stop => unreachable!("a sequence was sent"),
        })?;
        client.into_iter().for_each(|client| self.state.add_client(client));
        // The watchdog may have told all clients just before this one was added.
        if self.state.is_lost() {
            self.state.tell_all(&Event::Failed(STOPPED.to_owned()));
        }
        Ok(())
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

    /// See [`Handle::give_back`](crate::Handle::give_back).
    pub fn give_back(&self, bytes: u64, patience: Duration) -> u64 {
        let (reply, given) = crossbeam_channel::bounded(1);
        let request = MemoryRequest { bytes, preempts: false, reply: Some(reply) };
        if !self.state.is_alive() || self.commands.send(Command::GiveBack(request)).is_err() {
            return 0;
        }
        given.recv_timeout(patience).unwrap_or(0)
    }

    /// Ends the engine thread after its current step, without waiting for it. Every waiting or running sequence gets [`Event::Failed`].
    pub fn stop(&self) {
        self.state.close();
        // The send fails if the thread has ended already.
        let _ = self.commands.send(Command::Stop);
    }
}

/// The events of one sequence. Dropping the stream cancels the sequence at the next step.
pub struct EventStream {
    events: EventReceiver,
    progress: Arc<Progress>,
    ended: bool,
    engine: Arc<EngineState>,
}

impl EventStream {
    pub(crate) fn new(events: EventReceiver, progress: Arc<Progress>, engine: Arc<EngineState>) -> Self {
        Self { events, progress, ended: false, engine }
    }

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

    /// Whether the sequence's engine still runs.
    pub fn is_engine_alive(&self) -> bool {
        self.engine.is_alive()
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
