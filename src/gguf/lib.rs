//! Reads GGUF v2 and v3 files (little-endian): metadata, the tensor table and the memory-mapped bytes of the tensors.
//!
//! ```no_run
//! let file = penstock_gguf::GgufFile::open("model.gguf".as_ref())?;
//! println!("{:?} has {} tensors", file.architecture(), file.tensors().len());
//! if let Some(tensor) = file.tensor("output.weight") {
//!     println!("{} {:?}: {} bytes", tensor.type_name(), tensor.dims, file.data(tensor).len());
//! }
//! # Ok::<(), penstock_gguf::GgufError>(())
//! ```
//!
//! # Invariants
//! - A malformed file gives a [`GgufError`] that names the file, the byte and the fault. No input makes the reader panic.
//! - Every length is checked against the remaining bytes before memory is reserved for it.
//! - Every tensor of an open [`GgufFile`] lies inside its file, has a known type, and overlaps no other tensor.
//!
//! The format is described in ggml's `docs/gguf.md`.
//!
//! # Files that change while they are open
//! Penstock never writes a model file in place: a new version is written to another path and renamed over the old one, and deletion
//! unlinks. In both cases an open model keeps its own inode until it is dropped. Three measures cover tools that break this rule:
//! - Touching a mapped page that the file no longer has raises SIGBUS, which would end the process and every model in it. A handler
//!   (`guard.rs`) maps zeros there and marks the file: [`GgufFile::is_damaged`]. Engines check the mark before they return a result.
//! - [`GgufFile::verify_unchanged`] also compares each file's length and modification time with those at open. It is called before and
//!   after weights are read, and while an engine runs.
//! - [`Backing::Private`] (`mmap = false` in the configuration) copies the file at open, for directories with untrusted writers. Later
//!   changes to the file then have no effect.

mod access;
mod digest;
mod error;
mod exact;
mod file;
mod guard;
mod map;
mod parse;
mod reader;
mod split;
mod tensor;
pub mod types;
pub mod value;
#[doc(hidden)]
pub mod writer;

#[cfg(test)]
mod malformed_tests;
#[cfg(test)]
mod tests;

pub use error::GgufError;
pub use file::GgufFile;
pub use map::Backing;
pub use split::PartName;
pub use tensor::TensorInfo;
pub use types::{GGML_TYPES, GgmlType, ggml_type};
pub use value::{Array, Value};
pub use writer::GgufBuilder;
