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
mod parts;
mod per_layer;
mod short;
mod streams;
mod tensor;
mod tensors;

use crate::EngineError;
use builder::Builder;
use model::Weights;
pub use op::Op;
pub use parts::Program;
pub use tensor::Tensor;

impl Program {
    /// `ropes`: for each layer the index of its rotation.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names a tensor that is missing.
    pub fn new(weights: &Weights, ropes: &[Option<usize>]) -> Result<Self, EngineError> {
        Builder::new(weights, ropes).build()
    }
}
