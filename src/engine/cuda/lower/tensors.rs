//! Adds tensors to the device's program, each of them once per form.

use super::super::sys;
use super::lowering::Lowering;
use super::parts::NONE;
use super::tensor::{Form, Source, Tensor};
use crate::EngineError;
use crate::program::tensor::Slice;
use crate::program::tensor::Tensor as ProgramTensor;
use crate::program::{self, Span, TensorId};
use model::{QUANTS, Weight, Weights};

/// ggml's type ids of vectors on the device, and of matrices that are made at load.
const F32: u32 = QUANTS[0].id;
const F16: u32 = QUANTS[1].id;

impl Lowering<'_> {
    /// The weights of a matrix in the file.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] if the file does not have it. [`EngineError::Unsupported`] if its products have a factor of their own.
    fn weight(&self, id: TensorId) -> Result<Weight, EngineError> {
        let weight = self.from.tensor(id).required_weight(self.weights)?;
        match weight.scale {
            None => Ok(weight),
            Some(scale) => {
                let name = &self.weights.file.tensors()[scale].name;
                Err(EngineError::Unsupported(format!("tensor {name} on a GPU: use --backend cpu")))
            }
        }
    }

    /// The matrices of a tensor.
    pub fn matrix(&mut self, id: TensorId) -> Result<u32, EngineError> {
        let weight = self.weight(id)?;
        let of = self.from.tensor(id);
        if matches!(of.source, program::Source::LatentKeys(_) | program::Source::Transposed(_)) {
            let desc = sys::pen_tensor { r#type: F16, ..desc(sys::PEN_MATRIX, of, &weight) };
            let make = move |weights: &Weights| transposed(weights, &weight);
            return Ok(self.tensor(id, Form::Matrices, desc, Source::Made(Box::new(make))));
        }
        match of.slice {
            Slice::Columns(span) => self.columns(id, span),
            _ => Ok(self.tensor(id, Form::Matrices, desc(sys::PEN_MATRIX, of, &weight), Source::File(weight))),
        }
    }

    /// Some columns of the matrix in the file of which a tensor has columns.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if they are no whole blocks.
    pub fn columns(&mut self, id: TensorId, span: Span) -> Result<u32, EngineError> {
        let (weight, of) = (self.weight(id)?, self.from.tensor(id));
        let block = weight.quant.block_size;
        if [span.first, span.len].iter().any(|cols| !cols.is_multiple_of(block)) {
            let (end, name) = (span.range().end, &of.name);
            return Err(self.cannot(&format!("columns {} to {end} of {name} are no whole blocks of {block}", span.first)));
        }
        let desc = sys::pen_tensor { cols: span.len as u32, ..desc(sys::PEN_MATRIX, of, &weight) };
        Ok(self.tensor(id, Form::Columns(span.first), desc, Source::Columns(weight, span)))
    }

    pub fn optional_matrix(&mut self, id: Option<TensorId>) -> Result<u32, EngineError> {
        id.map_or(Ok(NONE), |id| self.matrix(id))
    }

    /// Gate and up of a gated layer in one matrix, if both have the same type. Returns the numbers of both tensors.
    pub fn pair(&mut self, [gate, up]: [TensorId; 2]) -> Result<Option<[u32; 2]>, EngineError> {
        let weights = [self.weight(gate)?, self.weight(up)?];
        if weights[0].quant.id != weights[1].quant.id {
            return Ok(None);
        }
        let kinds = [sys::PEN_UPPER_HALF, sys::PEN_LOWER_HALF];
        let mut pair = [NONE; 2];
        for (i, id) in [gate, up].into_iter().enumerate() {
            let desc = desc(kinds[i], self.from.tensor(id), &weights[i]);
            pair[i] = self.tensor(id, Form::Half, desc, Source::File(weights[i]));
        }
        Ok(Some(pair))
    }

    /// All weights of a tensor as float32.
    pub fn vector(&mut self, id: TensorId) -> u32 {
        let of = self.from.tensor(id).clone();
        let len = of.rows * of.cols * of.count;
        let desc = sys::pen_tensor { kind: sys::PEN_VECTOR, r#type: F32, rows: 1, cols: len as u32, count: 1, read: 1 };
        let make = move |weights: &Weights| bytemuck::cast_slice(&of.vector(weights)).to_vec();
        self.tensor(id, Form::Vector, desc, Source::Made(Box::new(make)))
    }

    /// A vector, or [`NONE`].
    pub fn vector_or_none(&mut self, id: Option<TensorId>) -> u32 {
        id.map_or(NONE, |id| self.vector(id))
    }

    /// The rows of a matrix.
    pub fn rows(&self, id: TensorId) -> usize {
        self.from.tensor(id).rows
    }

    fn tensor(&mut self, id: TensorId, form: Form, desc: sys::pen_tensor, source: Source) -> u32 {
        let (tensors, name) = (&mut self.out.tensors, &self.from.tensor(id).name);
        *self.tensors.entry((id, form)).or_insert_with(|| {
            tensors.push(Tensor { desc, source, name: name.clone() });
            tensors.len() as u32 - 1
        })
    }
}

fn desc(kind: u32, of: &ProgramTensor, weight: &Weight) -> sys::pen_tensor {
    let [rows, cols, count, read] = [of.rows, of.cols, of.count, of.read].map(|n| n as u32);
    sys::pen_tensor { kind, r#type: weight.quant.id, rows, cols, count, read }
}

/// The transposes of a stack's matrices, as float16.
fn transposed(weights: &Weights, stack: &Weight) -> Vec<u8> {
    let mut out = Vec::new();
    for part in weights.parts(stack) {
        let mut floats = vec![0f32; part.rows * part.cols];
        (part.quant.dequantize)(weights.data(&part), &mut floats);
        for col in 0..part.cols {
            out.extend((0..part.rows).flat_map(|row| half::f16::from_f32(floats[row * part.cols + col]).to_le_bytes()));
        }
    }
    out
}
