//! Describes models as data: architectures, hyperparameters, tensors and tensor types.
//!
//! ```no_run
//! use std::sync::Arc;
//! use penstock_model::{TensorRole, Weights};
//!
//! let file = Arc::new(gguf::GgufFile::open("model.gguf".as_ref()).unwrap());
//! let weights = Weights::load(file).unwrap();
//! println!("{}: {} layers", weights.spec.arch.name, weights.spec.num_layers());
//! let norm: Vec<f32> = weights.vector(TensorRole::OutputNorm, 0).unwrap();
//! ```
//!
//! # Invariants
//! - A model is data: an architecture is a row of [`ARCHS`], and a tensor type is a row of [`QUANTS`]. No file of this crate is about one
//!   model.
//! - A [`ModelSpec`] is valid: every hyperparameter was checked when it was read, and sizes computed from it do not overflow.
//! - [`Weights`] are complete: every required role has a tensor of the expected shape and of a type in [`QUANTS`].
//! - Dequantisation is exact: every weight has the bits that the `gguf` Python package gives.

pub mod arch;
mod archs;
mod cache_groups;
pub mod codebook;
pub mod dequant;
mod error;
mod gather;
mod kind;
mod layer_roles;
mod load;
pub mod quant;
mod read;
mod shapes;
mod source;
pub mod spec;
mod tensor_check;
pub mod tensor_roles;
#[doc(hidden)]
pub mod testing;
pub mod vision;
pub mod vocab_check;
mod weights;

#[cfg(test)]
mod recurrent_tests;
#[cfg(test)]
mod special_tests;
#[cfg(test)]
mod tests;

pub use arch::{Activation, Arch, NormKind, RopePairing, WindowKind};
pub use archs::ARCHS;
pub use cache_groups::{CacheWindow, LayerGroup};
pub use error::{ModelError, ModelFault};
pub use load::FUSED;
pub use quant::{QUANTS, Quant};
pub use source::Source;
pub use spec::{Attention, Experts, FeedForward, LayerSpec, Mixer, ModelSpec, Pooling, RopeScaling, Ssm};
pub use tensor_roles::TensorRole;
pub use vision::{VisionSpec, VisionWeights};
pub use weights::{Stack, StackLayout, Weight, Weights};
