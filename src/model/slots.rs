//! Tensor slots and the names that GGUF gives them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ModelSpec, Quant};
use crate::gguf::GgufFile;

/// A place in the forward pass that a tensor fills. The names are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorSlot {
    TokenEmbd,
    OutputNorm,
    Output,
    RopeFreqs,
    AttnNorm,
    AttnQ,
    AttnK,
    AttnV,
    AttnQBias,
    AttnKBias,
    AttnVBias,
    AttnQNorm,
    AttnKNorm,
    AttnOutput,
    PostAttnNorm,
    FfnNorm,
    FfnGate,
    FfnUp,
    FfnDown,
    PostFfnNorm,
}

/// A tensor of the mapped file: `rows` rows of `cols` weights in `quant`'s blocks.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub quant: &'static Quant,
    pub rows: usize,
    pub cols: usize,
    /// Index into the file's tensors.
    pub tensor: usize,
}

/// Every tensor of a model by slot and layer (0 for those outside of layers), with the map that holds their bytes.
pub struct Weights {
    pub spec: ModelSpec,
    pub file: Arc<GgufFile>,
    pub by_slot: HashMap<(TensorSlot, usize), Weight>,
}

impl Weights {
    pub fn get(&self, slot: TensorSlot, layer: usize) -> Option<&Weight> {
        self.by_slot.get(&(slot, layer))
    }

    /// The weight's bytes in the map.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        self.file.data(&self.file.tensors()[weight.tensor])
    }
}
