//! The bounds within which a scheduler works.

#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Rows per step. Decode rows come first; the rest of the budget prefills prompts in chunks.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Sequences that may wait. One more is refused with [`EnqueueError::QueueFull`](crate::EnqueueError::QueueFull).
    pub max_waiting: usize,
    /// Tokens of the prompts that may wait, with further ones refused as [`EnqueueError::TokensFull`](crate::EnqueueError::TokensFull). 0:
    /// 16 times the KV cache, and at least 64 for each of the `max_waiting`.
    pub max_waiting_tokens: usize,
    /// Whether blocks are shared between sequences with the same prefix. A model with recurrent state also needs state
    /// slots beyond those of the sequences that run.
    pub prefix_cache: bool,
}
