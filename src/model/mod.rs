//! What a model is: its architecture's row, its hyperparameters, its tensors.

pub mod arch;
pub mod codebook;
pub mod dequant;
mod error;
mod from_gguf;
mod kind;
pub mod load;
pub mod quant;
pub mod slots;
pub mod spec;
#[doc(hidden)]
pub mod testing;
pub mod vocab_check;

#[cfg(test)]
mod tests;

pub use arch::{ARCHS, Activation, Arch, NormKind, RopePairing};
pub use error::{ModelError, ModelFault};
pub use quant::{QUANTS, Quant};
pub use slots::{TensorSlot, Weight, Weights};
pub use spec::{Experts, ModelSpec, RopeScaling};
