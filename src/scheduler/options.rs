//! The limits of a scheduler.

#[derive(Clone, Debug)]
pub struct SchedulerOptions {
    /// The most rows per step. Decode rows come first. The rest of the budget prefills prompts in chunks.
    pub max_batch_tokens: usize,
    /// The most sequences that run at once.
    pub max_running: usize,
    /// The most sequences that may wait. Further ones are refused with [`EnqueueError::QueueFull`](crate::EnqueueError::QueueFull).
    pub max_waiting: usize,
    /// The most prompt tokens that may wait. Further prompts are refused with
    /// [`EnqueueError::TokensFull`](crate::EnqueueError::TokensFull). 0 means 16 times the KV cache, and at least 64 tokens per place of
    /// `max_waiting`.
    pub max_waiting_tokens: usize,
    /// Whether blocks are shared between sequences with the same prefix. A model with recurrent state also needs state
    /// slots beyond those of the sequences that run.
    pub prefix_cache: bool,
    /// Whether sequences are drafted from their own context and from predicted answers. A model with recurrent state gets no drafts,
    /// because a state cannot go back behind a wrong one.
    pub drafts: bool,
}
