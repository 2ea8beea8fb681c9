//! [`OpenAdapter`]: what is read from the files of an adapter.

use std::ops::RangeInclusive;

use engine::{Adapter, ChangeKind, WeightChange};
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

impl OpenAdapter {
    /// An adapter of these changes.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn of_changes(changes: Vec<WeightChange>, invocation: Vec<u32>, unused: Vec<String>) -> Result<Self, String> {
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

/// Checks the tokens that switch an activated LoRA on. `field` names them in the error.
pub fn invocation_of(field: &str, ids: &[i64], weights: &Weights) -> Result<Vec<u32>, String> {
    let vocabulary = weights.spec.vocab_size;
    if ids.is_empty() {
        return Err(format!("{field} is empty, expected the tokens that switch the adapter on"));
    }
    let known = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < vocabulary);
    ids.iter().map(|id| known(id).ok_or_else(|| format!("{field} has {id}, expected tokens below {vocabulary}"))).collect()
}
