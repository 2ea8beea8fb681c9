//! Checks the shape, type and values of a file's tensors.

use crate::error::ModelFault;
use crate::quant::{QUANTS, Quant};
use crate::weights::Weight;
use gguf::{GgufFile, TensorInfo};

/// Checks that a tensor has the expected dimensions (innermost first) and a type in `QUANTS`. A vector must be of a float type.
pub fn check(tensor: &TensorInfo, expected: &[usize], is_vector: bool) -> Result<&'static Quant, ModelFault> {
    let name = || tensor.name.clone();
    // Files may omit dimensions of 1, or add some.
    let significant = |dims: &[u64]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<u64>>();
    let expected: Vec<u64> = expected.iter().map(|&n| n as u64).collect();
    if significant(&expected) != significant(&tensor.dims) {
        return Err(ModelFault::TensorShape { tensor: name(), found: tensor.dims.clone(), expected });
    }
    let wrong_type =
        |expected: &str| ModelFault::TensorType { tensor: name(), found: tensor.type_name().to_owned(), expected: expected.to_owned() };
    let Some(quant) = Quant::by_id(tensor.type_id) else {
        let known: Vec<&str> = QUANTS.iter().map(|quant| quant.name).collect();
        return Err(wrong_type(&format!("one of {}", known.join(", "))));
    };
    if is_vector && quant.block_size != 1 {
        return Err(wrong_type("F32, F16 or BF16"));
    }
    Ok(quant)
}

/// Checks that all values of a tensor are finite and as expected. RoPE's frequencies are divided by their factors, and a recurrence's state
/// shrinks by e^a, so other values would break the results.
pub fn check_values(
    file: &GgufFile,
    weight: Option<&Weight>,
    expected: &'static str,
    is_right: impl Fn(f32) -> bool,
) -> Result<(), ModelFault> {
    let Some(weight) = weight else { return Ok(()) };
    let tensor = &file.tensors()[weight.tensor];
    let mut values = vec![0.0; weight.rows * weight.cols];
    (weight.quant.dequantize)(file.data(tensor), &mut values);
    match values.iter().position(|&value| !(value.is_finite() && is_right(value))) {
        None => Ok(()),
        Some(index) => Err(ModelFault::TensorValue { tensor: tensor.name.clone(), found: values[index], index, expected }),
    }
}
