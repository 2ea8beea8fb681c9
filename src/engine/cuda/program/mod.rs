//! Translates a model to a program: the list of ops that a step runs, with the tensors and buffers that they name.
//! `cuda/include/penstock.h` defines what each op computes. The CPU's forward pass walks the same description in the same order
//! (`cpu/forward.rs`).

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
    /// Builds the program. `ropes` holds the index of each layer's rotation.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] names a missing tensor.
    pub fn new(weights: &Weights, ropes: &[Option<usize>]) -> Result<Self, EngineError> {
        Builder::new(weights, ropes).build()
    }
}
