//! What a model is: its architecture's row, its hyperparameters, its tensors.

pub mod arch;
pub mod quant;
pub mod slots;
pub mod spec;

pub use arch::{ARCHS, Activation, Arch, Norm, RopePairing};
pub use quant::{QUANTS, Quant};
pub use slots::{TensorSlot, Weight, Weights};
pub use spec::{ModelSpec, RopeScaling};
