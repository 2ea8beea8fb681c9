//! [`Tensors`]: the numbers of `adapter_model.safetensors`.

use convert::{Shard, Tensor, float_type};
use model::Quant;

use super::files::fault_of;
use crate::budget::Budget;
use crate::numbers::check_finite;

/// The bytes that are read at a time.
const PIECE: usize = 1 << 20;

pub struct Tensors<'a> {
    shard: Shard,
    list: &'a [Tensor],
    /// The tensors' shapes, outermost dimension first.
    shapes: Vec<Vec<usize>>,
}

impl<'a> Tensors<'a> {
    pub fn new(shard: Shard, list: &'a [Tensor]) -> Self {
        let shape = |tensor: &Tensor| tensor.shape.iter().map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
        Self { shard, list, shapes: list.iter().map(shape).collect() }
    }

    fn wrong_shape(&self, index: usize, expected: &str) -> String {
        let (tensor, shape) = (&self.list[index], &self.shapes[index]);
        format!("tensor {} has the shape {shape:?}, expected {expected}", outside::in_line(&tensor.name))
    }

    /// The shape of a matrix.
    pub fn matrix(&self, index: usize) -> Result<[usize; 2], String> {
        match self.shapes[index][..] {
            [rows, cols] => Ok([rows, cols]),
            _ => Err(self.wrong_shape(index, "two dimensions")),
        }
    }

    /// The shape of a matrix, or of a vector as one row.
    pub fn rows_and_cols(&self, index: usize) -> Result<[usize; 2], String> {
        match self.shapes[index][..] {
            [cols] => Ok([1, cols]),
            [rows, cols] => Ok([rows, cols]),
            _ => Err(self.wrong_shape(index, "one or two dimensions")),
        }
    }

    /// The numbers of a vector with `len` elements.
    pub fn vector(&self, index: usize, len: usize, budget: &mut Budget) -> Result<Vec<f32>, String> {
        match self.shapes[index].iter().product::<usize>() == len {
            true => self.numbers(index, budget),
            false => Err(self.wrong_shape(index, &format!("[{len}]"))),
        }
    }

    /// All numbers of a tensor.
    ///
    /// # Errors
    /// If the type is not a float type, the file cannot be read, or a number is not finite.
    pub fn numbers(&self, index: usize, budget: &mut Budget) -> Result<Vec<f32>, String> {
        let (tensor, shape) = (&self.list[index], &self.shapes[index]);
        let Some(quant) = float_type(tensor.dtype).and_then(Quant::by_id) else {
            return Err(format!("tensor {} is of type {}, expected F32, F16 or BF16", outside::in_line(&tensor.name), tensor.dtype));
        };
        let dim = |at: usize| shape.get(at).copied().unwrap_or(1);
        let mut out = vec![0f32; budget.take(&outside::in_line(&tensor.name), [dim(0), dim(1), dim(2)])?];
        let mut bytes = Vec::new();
        for (i, out) in out.chunks_mut(PIECE / quant.block_bytes).enumerate() {
            bytes.resize(out.len() * quant.block_bytes, 0);
            self.shard.read_tensor(tensor, (i * PIECE) as u64, &mut bytes).map_err(fault_of)?;
            (quant.dequantize)(&bytes, out);
        }
        check_finite(&outside::in_line(&tensor.name), &out)?;
        Ok(out)
    }
}
