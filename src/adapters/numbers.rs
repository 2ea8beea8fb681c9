//! Reads the numbers of tensors as float32.

use gguf::{GgufFile, TensorInfo};
use model::Quant;

use crate::budget::Budget;

/// The numbers of a tensor as float32.
///
/// # Errors
/// If the type is not one that engines compute with, or if a number is not finite.
pub fn numbers(file: &GgufFile, tensor: &TensorInfo, budget: &mut Budget) -> Result<Vec<f32>, String> {
    let Some(quant) = Quant::by_id(tensor.type_id) else {
        return Err(format!("tensor {} is of type {}, expected F32, F16, BF16 or a quantised type", tensor.name, tensor.type_name()));
    };
    let count = usize::try_from(tensor.elements()).unwrap_or(usize::MAX);
    let mut out = vec![0f32; budget.take(&tensor.name, [count, 1, 1])?];
    (quant.dequantize)(file.data(tensor), &mut out);
    check_finite(&tensor.name, &out)?;
    Ok(out)
}

/// Refuses NaN and infinity.
pub fn check_finite(name: &str, numbers: &[f32]) -> Result<(), String> {
    match numbers.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(format!("tensor {name} holds {} at index {index}, expected finite numbers", numbers[index])),
        None => Ok(()),
    }
}
