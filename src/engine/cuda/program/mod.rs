//! A model as a program: the list of ops that a step runs, with the tensors and buffers that they name. `cuda/include/penstock.h` says what
//! each op computes. The CPU's forward pass is the same walk over the same description (`cpu/forward.rs`).

mod attention;
mod builder;
mod delta;
mod experts;
mod feed_forward;
mod latent;
mod layer;
mod mamba;
mod op;
mod per_layer;
mod short;
mod streams;
mod tensor;

use super::sys;
use crate::EngineError;
use builder::Builder;
pub use builder::has_groups;
use model::Weights;
pub use op::Op;
pub use tensor::Tensor;

/// No tensor, no buffer.
const NONE: u32 = sys::PEN_NONE;

pub struct Program {
    pub tensors: Vec<Tensor>,
    pub buffers: Vec<sys::pen_buffer>,
    /// What the layers keep of each token.
    pub caches: Vec<sys::pen_cache>,
    /// Floats of recurrent state of a sequence, for each layer that has one.
    pub states: Vec<u32>,
    pub ops: Vec<Op>,
    pub head: sys::pen_head,
}

impl Program {
    /// `ropes`: for each layer the index of its rotation.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names a tensor that is missing.
    pub fn new(weights: &Weights, ropes: &[Option<usize>]) -> Result<Self, EngineError> {
        Builder::new(weights, ropes).build()
    }
}
