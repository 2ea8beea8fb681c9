//! Lowers a program to the ops of `cuda/include/penstock.h`, which documents what each of them computes.
//!
//! The lowering fuses ops and decides what is rounded to float16. A product computes the norm of its input. A norm adds the branch before
//! it to the stream. Attention finishes its heads. Gate and up share a matrix. Rows that matrices multiply are float16, everything else is
//! float32.

mod buffers;
mod convert;
mod experts;
mod heads;
mod lowering;
mod op;
mod parts;
mod pictures;
mod products;
mod rounding;
mod shards;
mod slices;
mod stream;
mod tensor;
mod tensors;

use crate::EngineError;
use crate::program::{EncoderProgram, Program};
use model::{VisionWeights, Weights};
pub use op::Op;
pub use parts::{DeviceProgram, row_set};
pub use tensor::{Source, Tensor};

impl DeviceProgram {
    /// Lowers a program.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for what no op of the device computes.
    pub fn new(weights: &Weights, program: &Program) -> Result<Self, EngineError> {
        Self::of_shards(weights, std::slice::from_ref(program))
    }

    /// Lowers the programs of all shards to one program, which runs them in lock-step on one device. The first shard's head is the model's.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for what no op of the device computes, and for what shards cannot compute with the bits of the whole.
    pub fn of_shards(weights: &Weights, programs: &[Program]) -> Result<Self, EngineError> {
        shards::check(programs)?;
        shards::join(weights, programs)
    }

    /// Lowers the program of a picture encoder.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for what no op of the device computes.
    pub fn of_encoder(vision: &VisionWeights, encoder: &EncoderProgram) -> Result<Self, EngineError> {
        pictures::lower(vision, encoder)
    }
}
