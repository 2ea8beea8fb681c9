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
mod products;
mod rounding;
mod stream;
mod tensor;
mod tensors;

use crate::EngineError;
use crate::program::Program;
use lowering::Lowering;
use model::Weights;
pub use op::Op;
pub use parts::DeviceProgram;
pub use tensor::Tensor;

impl DeviceProgram {
    /// Lowers a program.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for what no op of the device computes.
    pub fn new(weights: &Weights, program: &Program) -> Result<Self, EngineError> {
        Lowering::new(weights, program).run()
    }
}
