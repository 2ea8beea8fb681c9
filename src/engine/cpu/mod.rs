//! The CPU backend: embedded default and oracle.

use std::path::PathBuf;

use super::{Engine, EngineError};
use crate::model::Weights;


#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// 0: one a physical core.
    pub threads: usize,
    /// KV blocks in the pool.
    pub num_blocks: usize,
    pub block_size: usize,
    pub max_slots: usize,
    /// The most rows a batch may have.
    pub max_batch_tokens: usize,
}

/// Opens the CPU engine over a model's mapped weights.
pub fn open(weights: Weights, options: &CpuOptions) -> Result<Box<dyn Engine>, EngineError> {
    let _ = (weights, options, PathBuf::new());
    todo!()
}
