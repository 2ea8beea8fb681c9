//! [`Weights`]: an open model, with a tensor for every role.

use std::collections::HashMap;
use std::sync::Arc;

use crate::quant::Quant;
use crate::spec::ModelSpec;
use crate::tensor_roles::TensorRole;
use gguf::GgufFile;

/// A tensor of the mapped file, or some rows of one: `rows` rows of `cols` weights each, in blocks of `quant`. A vector has one row. A
/// stack of experts has the rows of all experts.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    pub quant: &'static Quant,
    pub rows: usize,
    pub cols: usize,
    /// The index into the file's tensors.
    pub tensor: usize,
    /// The offset of the first row in the tensor, in bytes.
    pub offset: usize,
    /// Set if the rows lie in equal parts that are not contiguous.
    pub stack: Option<Stack>,
    /// The index of the tensor with factors of the products: one factor, or one per part of a stack.
    pub scale: Option<usize>,
}

/// The layout of a stack's parts, if they are not contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    pub count: usize,
    pub place: StackLayout,
}

#[derive(Clone, Copy, Debug)]
pub enum StackLayout {
    /// In one tensor, with other rows between them, as for experts whose gate and up matrices share a tensor. The number is the distance
    /// from the first row of one part to that of the next, in bytes.
    Apart(usize),
    /// In separate tensors, whose indexes start here in [`Weights::part_tensors`].
    Tensors(usize),
}

impl Weight {
    /// The bytes of the rows, without the rows between the parts.
    pub fn num_bytes(&self) -> usize {
        self.rows * self.quant.row_bytes(self.cols)
    }
}

/// All tensors of a model, and the map that holds their bytes. Every required role of the architecture has a tensor with the spec's shape
/// and a type in `QUANTS`.
#[derive(Clone)]
pub struct Weights {
    pub spec: ModelSpec,
    pub file: Arc<GgufFile>,
    /// By role and layer. The layer is 0 for roles outside the layers.
    pub by_role: HashMap<(TensorRole, usize), Weight>,
    /// The tensors of the parts of stacks, see [`StackLayout::Tensors`].
    pub part_tensors: Vec<usize>,
}

impl Weights {
    /// The tensor of a role. In models without a separate output matrix, `Output` is the token embedding.
    pub fn get(&self, role: TensorRole, layer: usize) -> Option<&Weight> {
        self.by_role.get(&(role, layer))
    }

    /// The weights of a role as float32.
    pub fn vector(&self, role: TensorRole, layer: usize) -> Option<Vec<f32>> {
        self.get(role, layer).map(|weight| {
            let mut out = vec![0f32; weight.rows * weight.cols];
            let count = weight.stack.map_or(1, |stack| stack.count);
            let len = out.len() / count.max(1);
            for (i, out) in out.chunks_exact_mut(len.max(1)).enumerate() {
                let part = self.part(weight, i, count);
                (part.quant.dequantize)(self.data(&part), out);
            }
            out
        })
    }

    /// Part `i` of `count` equal parts. For a stack, `count` is the stack's.
    pub fn part(&self, weight: &Weight, i: usize, count: usize) -> Weight {
        let part = Weight { rows: weight.rows / count, stack: None, ..*weight };
        match weight.stack.map(|stack| stack.place) {
            None => Weight { offset: part.offset + i * part.num_bytes(), ..part },
            Some(StackLayout::Apart(bytes)) => Weight { offset: part.offset + i * bytes, ..part },
            Some(StackLayout::Tensors(first)) => Weight { tensor: self.part_tensors[first + i], ..part },
        }
    }

    /// The parts as separate weights. There is one if the rows are contiguous.
    pub fn parts(&self, weight: &Weight) -> impl Iterator<Item = Weight> {
        let count = weight.stack.map_or(1, |stack| stack.count);
        (0..count).map(move |i| self.part(weight, i, count))
    }

    /// The factors of a matrix's products: one, or one per part of a stack. Empty if there are none.
    pub fn scales(&self, weight: &Weight) -> Vec<f32> {
        let Some(tensor) = weight.scale.map(|index| &self.file.tensors()[index]) else { return Vec::new() };
        let mut out = vec![0f32; tensor.dims.iter().product::<u64>() as usize];
        if let Some(quant) = Quant::by_id(tensor.type_id) {
            (quant.dequantize)(self.file.data(tensor), &mut out);
        }
        out
    }

    /// The bytes of a weight with contiguous rows, such as a part of a stack.
    pub fn data(&self, weight: &Weight) -> &[u8] {
        debug_assert!(weight.stack.is_none(), "a stack is read part by part");
        &self.file.data(&self.file.tensors()[weight.tensor])[weight.offset..][..weight.num_bytes()]
    }
}
