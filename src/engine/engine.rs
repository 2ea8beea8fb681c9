//! The engine as the scheduler sees it.

use super::{Batch, DeviceMemory, EngineError, EngineInfo, KvCapacity, Masks, Progress, StepId, StepOutput};
use model::ModelSpec;

/// An engine, owned by one thread. Every output element is accumulated in one fixed order, so that a request's logits have the same bits
/// alone, in any batch, with any chunking of its prompt and after a preemption.
pub trait Engine: Send {
    fn spec(&self) -> &ModelSpec;
    fn kv_capacity(&self) -> KvCapacity;
    /// Sequence slots: the most sequences that may be alive at once.
    fn max_slots(&self) -> usize;
    /// Steps that may be in flight: 2 if the device runs beside the host, 1 if `submit` itself computes.
    fn max_in_flight(&self) -> usize;
    fn info(&self) -> EngineInfo {
        EngineInfo::default()
    }
    /// Leading KV blocks with memory behind them. Batches name no others.
    fn num_backed_blocks(&self) -> usize {
        self.kv_capacity().num_blocks
    }
    /// Puts memory behind at least the first `num_blocks` KV blocks, or takes it from behind later ones. Memory comes in large pages, so
    /// that more blocks may have memory afterwards than were asked for. Returns how many have it; if memory is short, no more than before.
    /// What the other blocks hold stays as it is. To take memory away, no step may be in flight.
    ///
    /// # Errors
    /// The device is lost. Too little memory is no error.
    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        let _ = num_blocks;
        Ok(self.num_backed_blocks())
    }
    /// The device's memory now. None: the engine has no memory of its own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }
    /// What grows while a step computes. None: the engine cannot tell, so that only the time of a whole step says whether it hangs.
    fn progress(&self) -> Option<Progress> {
        None
    }
    /// Bytes per second that a copy within the device's memory reads and writes, measured now. None: the engine cannot tell.
    fn copy_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// Starts a step.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] and [`EngineError::Unsupported`] before anything runs; no step has started then.
    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError>;
    /// Samples the step that was submitted last, if its batch said [`Batch::sample_later`]. No other step may be submitted before.
    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError>;
    /// Waits for a step. Steps are collected in the order of their submission. A step that still waits to be sampled is dropped with an
    /// error.
    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError>;
}
