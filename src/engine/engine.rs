//! Defines [`Engine`], as the scheduler sees it.

use super::{
    Adapter, Batch, CachePart, DeviceMemory, DraftRequest, EngineError, EngineInfo, KvCapacity, LoopLimits, Masks, PortableCache, Progress,
    StepId, StepOutput,
};
use model::ModelSpec;

/// An engine, owned by one thread. Every output element is summed in one fixed order, so a request's logits have the same bits alone, in
/// any batch, with any chunking of its prompt and after a preemption.
pub trait Engine: Send {
    fn spec(&self) -> &ModelSpec;
    fn kv_capacity(&self) -> KvCapacity;
    /// The number of sequence slots: the most sequences that may be alive at once.
    fn max_slots(&self) -> usize;
    /// The most steps in flight: 2 if the device runs in parallel with the host, 1 if `submit` itself computes.
    fn max_in_flight(&self) -> usize;
    fn info(&self) -> EngineInfo {
        EngineInfo::default()
    }
    /// The number of leading KV blocks with memory. Batches must not name others.
    fn num_backed_blocks(&self) -> usize {
        self.kv_capacity().num_blocks
    }
    /// Maps memory for at least the first `num_blocks` KV blocks, or unmaps the memory of later blocks. Memory comes in large pages, so
    /// more blocks may have memory afterwards than were asked for. Returns the number of blocks that have memory. If memory is short, that
    /// number is no larger than before. The other blocks keep their contents. No step may be in flight while memory is taken away.
    ///
    /// # Errors
    /// If the device is lost. Too little memory is not an error.
    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        let _ = num_blocks;
        Ok(self.num_backed_blocks())
    }
    /// The form in which parts of the cache leave the engine and come back. None if the engine hands out none.
    fn portable_cache(&self) -> Option<PortableCache> {
        None
    }
    /// Appends the bytes of a part of the cache to `out`. All its rows must have been collected.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] without a [portable cache](Engine::portable_cache), or if there is no such part. If the device is lost.
    fn export(&self, part: CachePart, out: &mut Vec<u8>) -> Result<(), EngineError> {
        let _ = (part, out);
        Err(EngineError::Unsupported("a cache that can be copied, on this device".into()))
    }
    /// Puts exported bytes in the place of a part of the cache, which no step in flight may use. Later steps read what the step that wrote
    /// the part would have left there.
    ///
    /// # Errors
    /// As [`Engine::export`], and for bytes of another length.
    fn import(&mut self, part: CachePart, bytes: &[u8]) -> Result<(), EngineError> {
        let _ = (part, bytes);
        Err(EngineError::Unsupported("a cache that can be copied, on this device".into()))
    }
    /// The device's memory now. None if the engine has no memory of its own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }
    /// A counter that grows while a step computes. None if the engine has none, so that only the time of a whole step shows a hang.
    fn progress(&self) -> Option<Progress> {
        None
    }
    /// The bytes per second that a copy within the device's memory reads and writes, measured now. None if the engine cannot measure it.
    fn copy_bandwidth(&mut self) -> Option<f64> {
        None
    }
    /// The limits of loops: decode steps that the device runs by itself ([`Batch::loop_steps`]). None if the engine has none.
    fn loop_limits(&self) -> Option<LoopLimits> {
        None
    }
    /// Lets the loops in flight end early: one that runs, after [`LoopLimits::turn`] steps at most, and one that has not begun before its
    /// first step. The steps that have run are collected as usual.
    fn end_loops(&mut self) {}
    /// Whether a picture encoder waits for the device between steps. Loops must end then, since it gets its turns before a step.
    fn is_shared(&self) -> bool {
        false
    }
    /// The number of adapters that may be loaded at once. 0 if the engine has none.
    fn max_adapters(&self) -> usize {
        0
    }
    /// Loads an adapter to a place below [`Engine::max_adapters`], in place of what is there. No step in flight may use that place.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] names a tensor that the model's program does not multiply with, or whose shape differs.
    /// [`EngineError::OutOfMemory`]. The place is then empty.
    fn load_adapter(&mut self, place: u32, adapter: &Adapter) -> Result<(), EngineError> {
        let _ = (place, adapter);
        Err(EngineError::Unsupported("adapters on this device".into()))
    }
    /// Empties a place. No step in flight may use it.
    fn unload_adapter(&mut self, place: u32) {
        let _ = place;
    }
    /// Starts a step, or a loop of steps.
    ///
    /// # Errors
    /// [`EngineError::InvalidBatch`] or [`EngineError::Unsupported`] before anything runs. No step has then started.
    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError>;
    /// Samples the step that was submitted last, if its batch set [`Batch::sample_later`]. No other step may be submitted before that.
    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError>;
    /// Guesses the tokens that follow with the draft head ([`EngineInfo::draft_head`]), as many per sequence as it asks for, or fewer. No
    /// step may be in flight. What the head computes meanwhile changes no later step.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] without a draft head, [`EngineError::InvalidBatch`] for requests that cannot be.
    fn draft(&mut self, requests: &[DraftRequest]) -> Result<Vec<Vec<u32>>, EngineError> {
        match requests {
            [] => Ok(Vec::new()),
            _ => Err(EngineError::Unsupported("drafts of an engine without a draft head".into())),
        }
    }
    /// Waits for a step. Steps are collected in the order of submission. A step that has not been sampled yet is dropped with an error.
    /// Each step of a loop is collected by a call of its own, as long as [`StepOutput::goes_on`] says so.
    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError>;
}
