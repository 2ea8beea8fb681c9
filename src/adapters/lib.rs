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
mod peft;
mod targets;

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::path::Path;

use engine::{Adapter, ChangeKind, WeightChange};
pub use error::AdapterError;
use model::Weights;

/// An adapter whose tensors fit a model.
#[derive(Debug)]
pub struct OpenAdapter {
    pub adapter: Adapter,
    pub kind: AdapterKind,
    /// The largest rank of its tensors. 0 for control vectors.
    pub rank: usize,
    /// The tokens of the prompt that switch it on, at their last occurrence (activated LoRA). Empty: the whole prompt has it.
    pub invocation: Vec<u32>,
    /// The file's matrices that the model has and does not use, so that their changes have no effect: those of draft heads, and keys and
    /// values of layers that read another layer's.
    pub unused: Vec<String>,
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

impl OpenAdapter {
    /// An adapter of these changes.
    ///
    /// # Errors
    /// If there is none.
    fn of_changes(changes: Vec<WeightChange>, invocation: Vec<u32>, unused: Vec<String>) -> Result<Self, String> {
        if changes.is_empty() {
            return Err("the adapter changes no matrix that the model uses".to_owned());
        }
        let of = |change: &WeightChange| match &change.kind {
            ChangeKind::Low(low) => (low.rank, low.gain.is_some()),
            ChangeKind::Replacement(_) => (0, false),
        };
        let rank = changes.iter().map(|change| of(change).0).max().unwrap_or(0);
        let kind = if changes.iter().any(|change| of(change).1) { AdapterKind::Dora } else { AdapterKind::Lora };
        Ok(Self { adapter: Adapter { changes, directions: Vec::new() }, kind, rank, invocation, unused })
    }

    /// Keeps the directions behind these layers. Changes of weights stay.
    pub fn within(mut self, layers: &RangeInclusive<usize>) -> Self {
        self.adapter.directions.retain(|direction| layers.contains(&direction.layer));
        self
    }
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

/// Checks the tokens that switch an activated LoRA on. `field` names them in the error.
fn invocation_of(field: &str, ids: &[i64], weights: &Weights) -> Result<Vec<u32>, String> {
    let vocabulary = weights.spec.vocab_size;
    if ids.is_empty() {
        return Err(format!("{field} is empty, expected the tokens that switch the adapter on"));
    }
    let known = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocabulary);
    ids.iter().map(|id| known(id).ok_or_else(|| format!("{field} has {id}, expected tokens below {vocabulary}"))).collect()
}
