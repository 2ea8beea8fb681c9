//! Looks up embeddings.

use super::super::matrix::dequantize_row;
use super::super::simd::rows::Rows;
use super::step::{Kernel, Step};
use super::tensors::Tensors;
use crate::program::{AddSlice, BufferId, Embed, TensorId};
use crate::{EngineError, Input};
use model::Weight;

pub struct EmbedKernel {
    table: Weight,
    tensor: TensorId,
    /// The embeddings of all token types, one after another.
    types: Option<Vec<f32>>,
    positions: Option<Weight>,
    scale: f32,
    pads_embeddings: bool,
    /// The floats of a row of embeddings.
    embedding_width: usize,
    out: BufferId,
}

impl EmbedKernel {
    pub fn new(op: &Embed, tensors: &Tensors) -> Result<Self, EngineError> {
        Ok(Self {
            table: tensors.weight(op.table)?,
            tensor: op.table,
            types: tensors.optional(op.types),
            positions: op.positions.map(|positions| tensors.weight(positions)).transpose()?,
            scale: op.scale,
            pads_embeddings: op.pads_embeddings,
            embedding_width: tensors.weights.spec.embedding_width(),
            out: op.out,
        })
    }
}

impl Kernel for EmbedKernel {
    fn run(&self, step: &mut Step) {
        let (kernels, weights, batch) = (step.kernels, step.weights, step.batch);
        let (adapters, adapted) = (step.adapters, step.adapted);
        let mut out = step.buffers.take(self.out);
        let width = out.width();
        out.for_each(step.pool, |i, row| {
            let id = match step.inputs[i] {
                Input::Token(id) => id,
                Input::Embedding(_) if self.pads_embeddings => 0,
                Input::Embedding(from) => {
                    return row.copy_from_slice(&batch.embeddings[from as usize * self.embedding_width..][..width]);
                }
                Input::Sampled(_) => unreachable!("resolved before the pass"),
            };
            dequantize_row(weights, &self.table, id as usize, row);
            adapters.change_table_row(kernels, self.tensor, adapted.of(i), id as usize, row);
            if self.scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= self.scale);
            }
            if let Some(types) = &self.types {
                let kind = batch.token_types.get(i).map_or(0, |&kind| kind as usize);
                kernels.add_to(row, &types[kind * width..][..width]);
            }
        });
        if let Some(positions) = &self.positions {
            let mut rows = Rows::new(width);
            rows.resize(out.num_rows());
            rows.for_each(step.pool, |i, row| dequantize_row(weights, positions, batch.positions[i] as usize, row));
            out.for_each(step.pool, |i, row| kernels.add_to(row, rows.row(i)));
        }
        step.buffers.put(self.out, out);
    }
}

pub struct AddSliceKernel {
    op: AddSlice,
    /// The floats of a row of embeddings.
    embedding_width: usize,
}

impl AddSliceKernel {
    pub fn new(op: &AddSlice, tensors: &Tensors) -> Self {
        Self { op: *op, embedding_width: tensors.weights.spec.embedding_width() }
    }
}

impl Kernel for AddSliceKernel {
    fn run(&self, step: &mut Step) {
        let (kernels, batch) = (step.kernels, step.batch);
        let mut to = step.buffers.take(self.op.to);
        let width = to.width();
        to.for_each(step.pool, |i, row| {
            if let Input::Embedding(from) = step.inputs[i] {
                let first = from as usize * self.embedding_width + self.op.slice * width;
                kernels.add_to(row, &batch.embeddings[first..][..width]);
            }
        });
        step.buffers.put(self.op.to, to);
    }
}
