//! Converts the folder of a Hugging Face checkpoint to a GGUF file.
//!
//! ```no_run
//! use penstock_convert::{Conversion, Options};
//!
//! let conversion = Conversion::plan("Qwen3-0.6B".as_ref(), Options::default()).unwrap();
//! let report = conversion.write("qwen3.gguf".as_ref(), &mut |_| {}).unwrap();
//! println!("{} bytes", report.bytes);
//! ```
//!
//! # Invariants
//! - A family is data: a row of `families/` maps the tensors and holds the settings that only this family has. No other file asks for a
//!   family's name.
//! - Every tensor of the checkpoint has a place in the output or is refused by name. Buffers that follow from the configuration are left
//!   out.
//! - A setting that changes what the model computes is written, or refused by name.
//! - Weights are moved, never rounded, unless another type is requested.
//! - Memory is bounded, whatever the size of the checkpoint: a few megabytes per thread, and one matrix of GPT-2.
//! - The output appears whole or not at all. Before it gets its final name, it is opened and checked as an engine would.

mod assign;
mod checkpoint;
mod config;
mod convert;
mod error;
mod families;
mod family;
mod general;
mod json;
mod metadata;
mod modules;
mod output_header;
mod pattern;
mod rope;
mod rows;
mod sentencepiece;
mod shard;
mod table;
mod vocabulary;
mod write;

pub use config::Config;
pub use convert::{Conversion, Options, Report, TensorReport};
pub use error::ConvertError;
pub use modules::{HeadSizes, ModulePart, classes_of, parts_of};
pub use shard::{Shard, Tensor, float_type};
