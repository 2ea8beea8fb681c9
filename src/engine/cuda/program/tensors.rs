//! Adds tensors to a program. Each tensor is added once.

use super::super::sys;
use super::builder::Builder;
use super::parts::{NONE, Program};
use super::tensor::{Key, Source, Tensor};
use crate::EngineError;
use model::{QUANTS, TensorRole, Weight, Weights};

/// ggml's type ids of vectors on the device, and of matrices that are made at load.
const F32: u32 = QUANTS[0].id;
const F16: u32 = QUANTS[1].id;

impl Builder<'_> {
    pub fn has(&self, role: TensorRole, layer: usize) -> bool {
        self.weights.get(role, layer).is_some()
    }

    /// Looks up a tensor of the file.
    ///
    /// # Errors
    /// [`EngineError::Tensor`] if the file does not have the tensor. [`EngineError::Unsupported`] if the tensor's products have a factor of
    /// their own.
    pub fn weight(&self, role: TensorRole, layer: usize) -> Result<Weight, EngineError> {
        let weight = self.weights.get(role, layer).copied();
        let weight = weight.ok_or_else(|| EngineError::Tensor(format!("{} is missing", role.name(layer))))?;
        match weight.scale {
            None => Ok(weight),
            Some(scale) => {
                let name = &self.weights.file.tensors()[scale].name;
                Err(EngineError::Unsupported(format!("tensor {name} on a GPU: use --backend cpu")))
            }
        }
    }

    /// A matrix of the file.
    pub fn matrix(&mut self, role: TensorRole, layer: usize) -> Result<u32, EngineError> {
        self.stack(role, layer, 1, 1)
    }

    /// The matrices of a stack of `count` matrices, of which a row uses `read`.
    pub fn stack(&mut self, role: TensorRole, layer: usize, count: usize, read: usize) -> Result<u32, EngineError> {
        let weight = self.weight(role, layer)?;
        let desc = matrices(sys::PEN_MATRIX, &weight, count, read);
        Ok(self.tensor(Key::Matrix(role, layer), desc, Source::File(weight), role.name(layer)))
    }

    /// Matrix `index` of a stack of `count`, as a separate matrix.
    pub fn part(&mut self, role: TensorRole, index: usize, count: usize) -> Result<u32, EngineError> {
        let whole = self.weight(role, 0)?;
        let weight = self.weights.part(&whole, index, count);
        Ok(self.tensor(Key::Part(role, index), matrices(sys::PEN_MATRIX, &weight, 1, 1), Source::File(weight), role.name(0)))
    }

    /// Gate and up of a gated layer in one matrix, if both have the same type. Returns the numbers of both tensors.
    pub fn pair(&mut self, [gate, up]: [TensorRole; 2], layer: usize, count: usize, read: usize) -> Result<Option<[u32; 2]>, EngineError> {
        let weights = [self.weight(gate, layer)?, self.weight(up, layer)?];
        if weights[0].quant.id != weights[1].quant.id {
            return Ok(None);
        }
        let kinds = [sys::PEN_UPPER_HALF, sys::PEN_LOWER_HALF];
        let mut pair = [NONE; 2];
        for (i, role) in [gate, up].into_iter().enumerate() {
            let desc = matrices(kinds[i], &weights[i], count, read);
            pair[i] = self.tensor(Key::Pair(role, layer), desc, Source::File(weights[i]), role.name(layer));
        }
        Ok(Some(pair))
    }

    /// Rows of a tensor of the file as a stack of `count` matrices. `role` names what the matrices are used for.
    pub fn file_matrices(&mut self, (role, layer): (TensorRole, usize), weight: Weight, count: usize) -> u32 {
        let desc = matrices(sys::PEN_MATRIX, &weight, count, count);
        self.tensor(Key::Matrix(role, layer), desc, Source::File(weight), role.name(layer))
    }

    /// Float16 matrices that are made at load.
    pub fn made_matrices(
        &mut self,
        (role, layer): (TensorRole, usize),
        [rows, cols, count]: [usize; 3],
        make: impl Fn(&Weights) -> Vec<u8> + Send + Sync + 'static,
    ) -> u32 {
        let desc = sys::pen_tensor {
            kind: sys::PEN_MATRIX,
            r#type: F16,
            rows: rows as u32,
            cols: cols as u32,
            count: count as u32,
            read: count as u32,
        };
        self.tensor(Key::Matrix(role, layer), desc, Source::Made(Box::new(make)), role.name(layer))
    }

    /// All weights of a tensor as float32. [`NONE`] if the file does not have the tensor.
    pub fn vector(&mut self, role: TensorRole, layer: usize) -> u32 {
        self.vector_with(role, layer, |vector| vector)
    }

    pub fn required_vector(&mut self, role: TensorRole, layer: usize) -> Result<u32, EngineError> {
        self.weight(role, layer)?;
        Ok(self.vector(role, layer))
    }

    /// A vector that is changed at load. The change may shorten the vector but not lengthen it.
    pub fn vector_with(&mut self, role: TensorRole, layer: usize, change: fn(Vec<f32>) -> Vec<f32>) -> u32 {
        let Some(len) = self.weights.get(role, layer).map(|weight| weight.rows * weight.cols) else { return NONE };
        self.made_vector(Key::Vector(role, layer), role.name(layer), len, move |weights| {
            weights.vector(role, layer).map(change).unwrap_or_default()
        })
    }

    /// A vector of `len` elements that is made at load.
    pub fn made_vector(&mut self, key: Key, name: String, len: usize, make: impl Fn(&Weights) -> Vec<f32> + Send + Sync + 'static) -> u32 {
        let desc = sys::pen_tensor { kind: sys::PEN_VECTOR, r#type: F32, rows: 1, cols: len as u32, count: 1, read: 1 };
        let bytes = move |weights: &Weights| bytemuck::cast_slice(&make(weights)).to_vec();
        self.tensor(key, desc, Source::Made(Box::new(bytes)), name)
    }

    fn tensor(&mut self, key: Key, desc: sys::pen_tensor, source: Source, name: String) -> u32 {
        let Program { tensors, .. } = &mut self.program;
        *self.tensors.entry(key).or_insert_with(|| {
            tensors.push(Tensor { desc, source, name });
            tensors.len() as u32 - 1
        })
    }
}

fn matrices(kind: u32, weight: &Weight, count: usize, read: usize) -> sys::pen_tensor {
    let rows = (weight.rows / count) as u32;
    sys::pen_tensor { kind, r#type: weight.quant.id, rows, cols: weight.cols as u32, count: count as u32, read: read as u32 }
}
