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
    /// Some: the rows lie in equal parts that do not follow one another.
    pub stack: Option<Stack>,
}

/// Where the parts of a stack lie, if other rows lie between them: experts whose gate and up matrices share a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub count: usize,
    /// From the first row of one part to that of the next.
    pub bytes: usize,
}

impl Weight {
    /// Bytes of the rows, without what lies between them.
    pub fn num_bytes(&self) -> usize {
        self.rows * self.quant.row_bytes(self.cols)
    }

    /// Bytes from the first row to the end of the last.
    pub fn span(&self) -> usize {
        match self.stack {
            None => self.num_bytes(),
            Some(stack) => stack.bytes * (stack.count - 1) + self.num_bytes() / stack.count,
        }
    }

    /// The parts as weights of their own: one for a tensor whose rows follow one another.
    pub fn parts(&self) -> impl Iterator<Item = Weight> {
        let stack = self.stack.unwrap_or(Stack { count: 1, bytes: 0 });
        let part = Weight { rows: self.rows / stack.count, stack: None, ..*self };
        (0..stack.count).map(move |i| Weight { offset: part.offset + i * stack.bytes, ..part })
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
            let len = out.len() / weight.stack.map_or(1, |stack| stack.count).max(1);
            for (part, out) in weight.parts().zip(out.chunks_exact_mut(len.max(1))) {
                (part.quant.dequantize)(self.data(&part), out);
            }
            out
        })
    }

    /// The bytes of `weight` in the map, with what lies between its parts.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        &self.file.data(&self.file.tensors()[weight.tensor])[weight.offset..][..weight.span()]
    }
}
