//! Reads the files of adapters, and fits them to a model: LoRA in GGUF files and PEFT's folders, DoRA, and control vectors.

mod error;

use std::path::Path;

pub use error::AdapterError;
use model::Weights;

/// An adapter whose tensors fit a model.
#[derive(Debug)]
pub struct OpenAdapter {
    pub adapter: engine::Adapter,
    pub kind: AdapterKind,
    /// The largest rank of its tensors. 0 for control vectors.
    pub rank: usize,
    /// The tokens of the prompt that switch it on, at their last occurrence (activated LoRA). Empty: the whole prompt has it.
    pub invocation: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    Lora,
    Dora,
    ControlVector,
}

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
    let _ = weights;
    Err(AdapterError::new(path, "adapters cannot be read yet"))
}
