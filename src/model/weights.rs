//! [`Weights`]: an open model, with the tensor of every slot.

use std::collections::HashMap;
use std::sync::Arc;

use crate::quant::Quant;
use crate::slots::TensorSlot;
use crate::spec::ModelSpec;
use gguf::GgufFile;

/// A tensor of the mapped file, or some rows of one: `rows` rows of `cols` weights each, in blocks of `quant`. A vector has one row. A
/// stack of experts has the rows of all experts.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub quant: &'static Quant,
    pub rows: usize,
    pub cols: usize,
    /// Index into the file's tensors.
    pub tensor: usize,
    /// Offset of the first row in the tensor, in bytes.
    pub offset: usize,
}

impl Weight {
    pub fn num_bytes(&self) -> usize {
        self.rows * self.quant.row_bytes(self.cols)
    }
}

/// All tensors of a model, and the map that holds their bytes. Every required slot of the architecture has a tensor, whose shape is that of
/// the spec and whose type is in `QUANTS`.
pub struct Weights {
    pub spec: ModelSpec,
    pub file: Arc<GgufFile>,
    /// By slot and layer. The layer is 0 for slots outside of layers.
    pub by_slot: HashMap<(TensorSlot, usize), Weight>,
}

impl Weights {
    /// The tensor of a slot. For models without an output matrix of their own, `Output` is the token embedding.
    pub fn get(&self, slot: TensorSlot, layer: usize) -> Option<&Weight> {
        self.by_slot.get(&(slot, layer))
    }

    /// The weights of a slot as float32.
    pub fn vector(&self, slot: TensorSlot, layer: usize) -> Option<Vec<f32>> {
        self.get(slot, layer).map(|weight| {
            let mut out = vec![0f32; weight.rows * weight.cols];
            (weight.quant.dequantize)(self.data(weight), &mut out);
            out
        })
    }

    /// The bytes of `weight` in the map.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        &self.file.data(&self.file.tensors()[weight.tensor])[weight.offset..][..weight.num_bytes()]
    }
}
