//! The bounds within which a scheduler works.

#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// Rows per step. Decode rows come first; the rest of the budget prefills prompts in chunks.
    pub max_batch_tokens: usize,
    /// Sequences that run at once.
    pub max_running: usize,
    /// Sequences that may wait. One more is refused with [`EnqueueError::QueueFull`](crate::EnqueueError::QueueFull).
    pub max_waiting: usize,
    /// Whether blocks are shared between sequences with the same prefix. A model with recurrent state also needs state
    /// slots beyond those of the sequences that run.
    pub prefix_cache: bool,
}
