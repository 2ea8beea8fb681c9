//! The engine thread: continuous batching over token ids. It never sees text.
//!
//! A sequence goes down once, through [`Handle::enqueue`]; its tokens come up through its [`EventStream`]. In between the thread
//! repeats one step: `policy` picks rows and blocks, `batch` lays them out, the engine runs them, `scheduler` commits the result.

mod batch;
mod block_manager;
#[cfg(test)]
mod fake;
mod guard;
mod masks;
#[cfg(test)]
mod masks_tests;
mod policy;
mod prefix;
#[cfg(test)]
mod prompt_tests;
#[allow(clippy::module_inception)]
mod scheduler;
mod sequence;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_channel::Sender;
use tokio::sync::mpsc;

use crate::engine::Engine;
pub use crate::engine::Pooling;
use crate::logits::{Grammar, Logprobs, SamplingParams};
use crate::metrics::ModelMetrics;
pub use guard::{Fault, Guard};
use sequence::{Sequence, Shared, Ticket};
use worker::Command;

const STOPPED: &str = "the engine has stopped";

#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Rows a step: decode rows first, the rest of the budget prefills prompts in chunks.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Sequences that may wait; one more is refused with `EnqueueError::QueueFull`.
    pub max_waiting: usize,
    pub prefix_cache: bool,
}

/// A validated sequence: its prompt fits the context, its ids the vocabulary.
#[derive(Clone, Debug)]
pub struct NewSequence {
    pub prompt: Vec<u32>,
    pub params: SamplingParams,
    /// 0 only where the prompt is all that is asked about: with `score_prompt` or `pool`.
    pub max_tokens: u32,
    /// Sampling one of these ends the sequence; the id itself is not delivered as a token.
    pub stop_ids: Vec<u32>,
    /// Prefix-cache blocks are shared only between sequences of the same salt.
    pub cache_salt: u64,
    /// Some(n): each token comes with its log-probability and those of the n likeliest, n <= [`MAX_LOGPROBS`].
    ///
    /// [`MAX_LOGPROBS`]: crate::logits::MAX_LOGPROBS
    pub num_logprobs: Option<u8>,
    /// What the tokens must follow. Its end ids should be among `stop_ids`.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Some(n): the log-probabilities of the prompt's tokens but the first, each with those of the n likeliest in its place.
    pub score_prompt: Option<u8>,
    /// The prompt becomes a vector; nothing is generated.
    pub pool: Option<Pooling>,
    /// Sequences of the same prompt that belong together: it is computed for one of them.
    pub family: Option<Family>,
}

impl NewSequence {
    /// A sequence that generates, and asks for nothing else.
    pub fn new(prompt: Vec<u32>, params: SamplingParams, max_tokens: u32) -> Self {
        Self {
            prompt,
            params,
            max_tokens,
            stop_ids: Vec::new(),
            cache_salt: 0,
            num_logprobs: None,
            score_prompt: None,
            pool: None,
            family: None,
            grammar: None,
        }
    }
}

/// Names the sequences that share a prompt. The first of them to be enqueued computes it; the others share its blocks and have a copy of
/// the one that they write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(u64);

impl Family {
    /// A name that was never given before.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was sampled, or a grammar allows nothing more (`stop`).
    Stop,
    /// `max_tokens` or the end of the KV cache (`length`).
    Length,
}

#[derive(Clone, Debug)]
pub enum Event {
    Token {
        id: u32,
        /// Where the sequence asked; boxed, since few do.
        logprobs: Option<Box<Logprobs>>,
    },
    /// The prompt's next tokens, in their order from the second on, where the sequence asked; all of them before the first token.
    Scored(Vec<Logprobs>),
    /// The prompt's vector.
    Pooled(Vec<f32>),
    /// The last event of a sequence that ended well.
    Finished {
        reason: FinishReason,
        prompt_tokens: u32,
        /// Prompt tokens that the prefix cache held.
        cached_tokens: u32,
        /// Tokens delivered: without the stop id.
        generated_tokens: u32,
    },
    /// The last event of one that did not: the logits were not finite, or the engine failed.
    Failed(String),
    /// The last event of one whose own grammar came to a dead end, or takes more to follow than is allowed.
    Unfollowable(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    #[error("the queue is full")]
    QueueFull,
    #[error("the engine has stopped")]
    Stopped,
}

/// A running engine thread; clones share it. The thread ends, after its running sequences were told so, when `stop` is
/// called or every handle is gone.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
    /// Does a watchdog need to know the clients?
    guarded: bool,
}

impl Handle {
    /// Starts the engine thread. Where the system has no thread left, the handle is dead from the start.
    pub fn spawn(engine: Box<dyn Engine>, options: SchedulerOptions, metrics: Arc<ModelMetrics>) -> Self {
        Self::spawn_guarded(engine, options, metrics, None)
    }

    /// As [`Handle::spawn`], with a watchdog for an engine that may get stuck, and a last call where its device is lost.
    pub fn spawn_guarded(engine: Box<dyn Engine>, options: SchedulerOptions, metrics: Arc<ModelMetrics>, guard: Option<Guard>) -> Self {
        // Unbounded, since tickets bound what it can hold.
        let (commands, receiver) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::new(options.max_waiting));
        let handle = Self { shared: shared.clone(), commands, guarded: guard.is_some() };
        let run = move || worker::run(scheduler::Scheduler::new(engine, options, metrics), receiver, shared, guard);
        if let Err(error) = std::thread::Builder::new().name("engine".into()).spawn(run) {
            tracing::error!("the engine thread did not start: {error}");
            handle.shared.alive.store(false, Ordering::Release);
        }
        handle
    }

    /// The one hop down: hands a sequence to the engine thread.
    pub fn enqueue(&self, sequence: NewSequence) -> Result<EventStream, EnqueueError> {
        if !self.is_alive() {
            return Err(EnqueueError::Stopped);
        }
        let ticket = Ticket::take(&self.shared)?;
        // Unbounded, but a sequence sends at most max_tokens + 1 events: a client that does not read costs little, and the engine
        // never waits for one.
        let (sender, receiver) = mpsc::unbounded_channel();
        if self.guarded {
            self.shared.add_client(&sender);
        }
        let sequence = Box::new(Sequence::new(sequence, sender, ticket));
        let num_cached = sequence.num_cached.clone();
        self.commands.send(Command::Enqueue(sequence)).map_err(|_| EnqueueError::Stopped)?;
        Ok(EventStream { receiver, num_cached, ended: false })
    }

    /// False once the engine failed or stopped: readiness.
    pub fn is_alive(&self) -> bool {
        self.shared.alive.load(Ordering::Acquire)
    }

    /// Is the device lost or stuck? Then nothing but a new process helps, and loading the model anew would not.
    pub fn is_lost(&self) -> bool {
        self.shared.is_lost()
    }

    /// Sequences waiting and running: for eviction and drains.
    pub fn num_active(&self) -> usize {
        self.shared.num_active()
    }

    /// Ends the engine thread after its current step; does not wait for it. Whatever waits or runs gets [`Event::Failed`].
    pub fn stop(&self) {
        self.shared.alive.store(false, Ordering::Release);
        // Nobody listens: it has ended already.
        let _ = self.commands.send(Command::Stop);
    }
}

/// A sequence's events. Dropping it cancels the sequence at the next step.
pub struct EventStream {
    receiver: mpsc::UnboundedReceiver<Event>,
    num_cached: Arc<AtomicU32>,
    ended: bool,
}

impl EventStream {
    /// None once the last event was read. Cancel-safe.
    pub async fn next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.receiver.recv().await;
        Some(self.note(event))
    }

    /// As [`EventStream::next`], outside of async code.
    pub fn blocking_next(&mut self) -> Option<Event> {
        if self.ended {
            return None;
        }
        let event = self.receiver.blocking_recv();
        Some(self.note(event))
    }

    /// Prompt tokens that the prefix cache held: known from the first event on, for those who drop the stream before the last.
    pub fn cached_tokens(&self) -> u32 {
        self.num_cached.load(Ordering::Acquire)
    }

    /// A channel that closes without a last event: the engine thread went down with the sequence.
    fn note(&mut self, event: Option<Event>) -> Event {
        let event = event.unwrap_or_else(|| Event::Failed(STOPPED.to_owned()));
        self.ended = matches!(event, Event::Finished { .. } | Event::Failed(_) | Event::Unfollowable(_));
        event
    }
}
