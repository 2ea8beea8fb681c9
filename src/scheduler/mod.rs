//! The engine thread: continuous batching over token ids. It never sees text.

use std::sync::Arc;

use crate::engine::Engine;
use crate::logits::SamplingParams;
use crate::metrics::ModelMetrics;

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
    /// At least 1.
    pub max_tokens: u32,
    /// Sampling one of these ends the sequence; the id itself is not delivered as a token.
    pub stop_ids: Vec<u32>,
    /// Prefix-cache blocks are shared only between sequences of the same salt.
    pub cache_salt: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id was sampled (`stop`).
    Stop,
    /// `max_tokens` or the end of the context (`length`).
    Length,
}

#[derive(Clone, Debug)]
pub enum Event {
    Token(u32),
    /// The last event of a sequence that ended well.
    Finished {
        reason: FinishReason,
        prompt_tokens: u32,
        cached_tokens: u32,
        generated_tokens: u32,
    },
    /// The last event of one that did not: the logits were not finite, or the engine failed.
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnqueueError {
    #[error("the queue is full")]
    QueueFull,
    #[error("the engine has stopped")]
    Stopped,
}

/// A running engine thread; clones share it. The thread ends, after its running sequences were told so, when `stop` is called or every handle is gone.
#[derive(Clone)]
pub struct Handle {}

impl Handle {
    /// Starts the engine thread.
    pub fn spawn(engine: Box<dyn Engine>, options: SchedulerOptions, metrics: Arc<ModelMetrics>) -> Self {
        let _ = (engine, options, metrics);
        todo!()
    }

    /// The one hop down: hands a sequence to the engine thread.
    pub fn enqueue(&self, sequence: NewSequence) -> Result<EventStream, EnqueueError> {
        let _ = sequence;
        todo!()
    }

    /// False once the engine failed or stopped: readiness.
    pub fn is_alive(&self) -> bool {
        todo!()
    }

    /// Sequences waiting and running: for eviction and drains.
    pub fn num_active(&self) -> usize {
        todo!()
    }

    pub fn stop(&self) {
        todo!()
    }
}

/// A sequence's events. Dropping it cancels the sequence at the next step.
pub struct EventStream {}

impl EventStream {
    /// None once the last event was read.
    pub async fn next(&mut self) -> Option<Event> {
        todo!()
    }

    pub fn blocking_next(&mut self) -> Option<Event> {
        todo!()
    }
}
