//! [`Adapter`]: what requests may add to a model's weights while it serves (LoRA, DoRA, control vectors).
//!
//! A product's matrix W becomes W' = gain ⊙ (W + scale · B A), without being changed: a step adds the thin products to the rows of the
//! sequences that ask ([`Batch::adapters`](crate::Batch::adapters)), and computes all other rows as ever. LoRA: arXiv 2106.09685, DoRA:
//! arXiv 2402.09353, control vectors: arXiv 2310.01405.

use std::sync::Arc;

use model::{StackLayout, Weight, Weights};

/// The changes of one file, whose names and shapes fit the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapter {
    pub changes: Vec<WeightChange>,
    pub directions: Vec<Direction>,
}

/// The change of a matrix, or of each matrix of a stack. A table of embeddings is a matrix with a row per token.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightChange {
    /// The name of the model's tensor. `output.weight` is the head's matrix also where a file ties it to `token_embd.weight`, which names
    /// the table alone.
    pub tensor: String,
    /// The number of matrices.
    pub count: usize,
    pub rows: usize,
    pub cols: usize,
    pub kind: ChangeKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ChangeKind {
    Low(LowRank),
    /// Weights in place of the model's [count, rows, cols].
    Replacement(Vec<f32>),
}

/// W' = gain ⊙ (W + scale · B A)
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    pub rank: usize,
    pub a: Vec<f32>, // [count, rank, cols]
    pub b: Vec<f32>, // [count, rows, rank]
    pub scale: f32,
    /// [count, rows] a factor for each row of the sum (DoRA).
    pub gain: Option<Vec<f32>>,
}

/// A vector that is added to the residual stream behind a layer (a control vector).
#[derive(Clone, Debug, PartialEq)]
pub struct Direction {
    pub layer: usize,
    pub vector: Vec<f32>, // [hidden]
}

/// An adapter that a sequence uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterUse {
    /// The place that the adapter was loaded to ([`Engine::load_adapter`](crate::Engine::load_adapter)).
    pub place: u32,
    /// A factor of its changes and directions.
    pub scale: f32,
    /// The first row of the context that it changes. Rows before it have the model's own weights (activated LoRA, arXiv 2504.12397).
    pub first: u32,
}

/// The adapters of a sequence, in the order in which they are added.
pub type SequenceAdapters = Arc<[AdapterUse]>;

impl Adapter {
    /// Hands all that its effect depends on to `each`, in a fixed order.
    pub fn for_each_bytes(&self, mut each: impl FnMut(&[u8])) {
        let lengths = |lengths: &[usize], each: &mut dyn FnMut(&[u8])| {
            lengths.iter().for_each(|&length| each(&(length as u64).to_le_bytes()));
        };
        let floats = |floats: &[f32], each: &mut dyn FnMut(&[u8])| {
            each(&(floats.len() as u64).to_le_bytes());
            each(bytemuck::cast_slice(floats));
        };
        for WeightChange { tensor, count, rows, cols, kind } in &self.changes {
            lengths(&[tensor.len(), *count, *rows, *cols], &mut each);
            each(tensor.as_bytes());
            match kind {
                ChangeKind::Low(LowRank { rank, a, b, scale, gain }) => {
                    lengths(&[1, *rank, usize::from(gain.is_some())], &mut each);
                    [a, b, gain.as_ref().unwrap_or(&Vec::new())].iter().for_each(|part| floats(part, &mut each));
                    each(&scale.to_le_bytes());
                }
                ChangeKind::Replacement(all) => {
                    lengths(&[2], &mut each);
                    floats(all, &mut each);
                }
            }
        }
        lengths(&[self.changes.len()], &mut each);
        for Direction { layer, vector } in &self.directions {
            lengths(&[*layer], &mut each);
            floats(vector, &mut each);
        }
    }

    /// The bytes of its numbers.
    pub fn num_bytes(&self) -> usize {
        let floats = |change: &WeightChange| match &change.kind {
            ChangeKind::Low(low) => low.a.len() + low.b.len() + low.gain.as_ref().map_or(0, Vec::len),
            ChangeKind::Replacement(all) => all.len(),
        };
        let directions: usize = self.directions.iter().map(|direction| direction.vector.len()).sum();
        (self.changes.iter().map(floats).sum::<usize>() + directions) * size_of::<f32>()
    }
}

/// Where the file holds the rows of a matrix.
pub(crate) struct RowsInFile {
    /// The name of the file's tensor.
    pub name: String,
    /// The rows of each matrix of that tensor: more than the matrix's own if it holds several.
    pub rows: usize,
    /// The first of the matrix's own rows.
    pub first: usize,
}

/// Finds the rows of `count` matrices with `cols` columns in the file. None if each matrix is a tensor of its own.
pub(crate) fn rows_in_file(weight: &Weight, [count, cols]: [usize; 2], weights: &Weights) -> Option<RowsInFile> {
    let info = &weights.file.tensors()[weight.tensor];
    let rows = info.elements() as usize / (cols * count).max(1);
    let is_apart = matches!(weight.stack.map(|stack| stack.place), Some(StackLayout::Tensors(_)));
    let first = weight.offset / weight.quant.row_bytes(weight.cols).max(1);
    (!is_apart).then(|| RowsInFile { name: info.name.clone(), rows, first })
}
