//! Reads the files of adapters, and fits them to a model: LoRA in GGUF files and PEFT's folders, DoRA, and control vectors.
//!
//! # Invariants
//! - Nothing is half loaded and nothing is skipped: every tensor of a file is a change of the model, or names a matrix that the model does
//!   not use ([`OpenAdapter::unused`]), or the file is refused and the error names the tensor.
//! - A change has the model's shapes, finite numbers, and the name that the model's file gives the tensor.
//! - Memory is reserved after the sizes were compared with the file's length and with a bound for the whole adapter.

mod assemble;
mod budget;
mod control_vector;
mod error;
mod gguf_file;
mod lora;
mod numbers;
mod open_adapter;
mod peft;
mod targets;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use error::AdapterError;
use model::Weights;
pub use open_adapter::{AdapterKind, OpenAdapter};

/// The first token of a prompt that an adapter changes: the start of the last occurrence of its invocation tokens, or the first one if it
/// has none. None: the prompt does not invoke it.
pub fn first_row(invocation: &[u32], prompt: &[u32]) -> Option<u32> {
    if invocation.is_empty() {
        return Some(0);
    }
    prompt.windows(invocation.len()).rposition(|window| window == invocation).map(|first| first as u32)
}

/// Opens the adapter in a GGUF file or in PEFT's folder.
///
/// # Errors
/// [`AdapterError`] names the file, and what of it cannot be read or does not fit the model.
pub fn open(path: &Path, weights: &Weights) -> Result<OpenAdapter, AdapterError> {
    let opened = match path.is_dir() {
        true => peft::open(path, weights),
        false => gguf_file::open(path, weights),
    };
    opened.map_err(|fault| AdapterError::new(path, fault))
}
