//! Writes a copy of a GGUF file with its tensors in other types.
//!
//! ```no_run
//! use penstock_quantize::{FileType, Options, quantize};
//!
//! let source = gguf::GgufFile::open("model-f16.gguf".as_ref()).unwrap();
//! let kind = FileType::by_name("Q4_K_M").unwrap();
//! let report = quantize(&source, kind, "model-q4_k_m.gguf".as_ref(), &Options::default(), &mut |_| {}).unwrap();
//! println!("{} bytes", report.bytes);
//! ```
//!
//! # Invariants
//! - The types that are defined by a formula (F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TQ1_0, TQ2_0, MXFP4) have the bits that ggml's
//!   quantisers give. The others are found by a search of our own, whose squared error is no larger than theirs on any test tensor.
//! - All written weights are finite. A weight that is not finite, or that its type cannot hold, is an error that names the tensor.
//! - Memory is bounded, whatever the size of the file: a few megabytes per thread.
//! - The output appears whole or not at all: it is written under another name, flushed and renamed.

mod affine;
mod curve;
mod encoder;
mod error;
mod file_type;
mod legacy;
mod microscaling;
mod mixture;
mod output;
mod piece;
mod plain;
mod plan;
mod rounding;
mod symmetric;
mod ternary;
mod write;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

pub use encoder::{ENCODERS, Encoder};
pub use error::QuantizeError;
pub use file_type::{FILE_TYPES, FileType};
pub use output::{ALIGNMENT, Output, may_write};
pub use piece::{Piece, check_finite, encode_weights, write_pieces};
pub use plan::{TensorPlan, is_matrix, plan};
pub use write::{Options, PIECE, QUANTIZATION_VERSION, Report, TensorReport, quantize, threads};
