//! An open file → [`Weights`]: every slot found, its shape and type checked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::error::{ModelError, ModelFault};
use super::{ModelSpec, Quant, TensorSlot, Weight, Weights};
use crate::gguf::{GgufFile, TensorInfo};

impl Weights {
    /// Validates the model of an open file. Nothing is copied: weights stay in the file's map.
    pub fn load(file: Arc<GgufFile>) -> Result<Self, ModelError> {
        let spec = ModelSpec::from_gguf(&file)?;
        match place(&file, &spec) {
            Ok(by_slot) => Ok(Weights { spec, file, by_slot }),
            Err(fault) => Err(ModelError { path: file.path().to_owned(), fault }),
        }
    }
}

fn place(file: &GgufFile, spec: &ModelSpec) -> Result<HashMap<(TensorSlot, usize), Weight>, ModelFault> {
    file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))?;
    let mut by_slot = HashMap::new();
    let slots = spec.arch.required.iter().map(|&slot| (slot, true)).chain(spec.arch.optional.iter().map(|&slot| (slot, false)));
    for (slot, required) in slots {
        let layers = if slot.per_layer() { spec.num_layers } else { 1 };
        for layer in 0..layers {
            let name = slot.name(layer);
            match file.tensor_index(&name) {
                Some(index) => {
                    by_slot.insert((slot, layer), check(&file.tensors()[index], index, slot.shape(spec))?);
                }
                None if required => return Err(ModelFault::MissingTensor { tensor: name }),
                None => {}
            }
        }
    }
    check_rope_freqs(file, by_slot.get(&(TensorSlot::RopeFreqs, 0)))?;
    refuse_unplaced(file, spec, &by_slot)?;
    if let Some(&embedding) = by_slot.get(&(TensorSlot::TokenEmbd, 0)) {
        by_slot.entry((TensorSlot::Output, 0)).or_insert(embedding);
    }
    Ok(by_slot)
}

/// A tensor of the expected shape and of a type in `QUANTS`; vectors are of a float type.
fn check(tensor: &TensorInfo, index: usize, (rows, cols): (Option<usize>, usize)) -> Result<Weight, ModelFault> {
    let name = || tensor.name.clone();
    let expected: Vec<u64> = std::iter::once(cols).chain(rows).map(|n| n as u64).collect();
    let (head, rest) = tensor.dims.split_at(expected.len().min(tensor.dims.len()));
    if head != expected || rest.iter().any(|&dim| dim != 1) {
        return Err(ModelFault::TensorShape { tensor: name(), found: tensor.dims.clone(), expected });
    }
    let wrong_type =
        |expected: &str| ModelFault::TensorType { tensor: name(), found: tensor.type_name().to_owned(), expected: expected.to_owned() };
    let Some(quant) = Quant::by_id(tensor.type_id) else {
        let known: Vec<&str> = super::QUANTS.iter().map(|quant| quant.name).collect();
        return Err(wrong_type(&format!("one of {}", known.join(", "))));
    };
    if rows.is_none() && quant.block_size != 1 {
        return Err(wrong_type("F32, F16 or BF16"));
    }
    Ok(Weight { quant, rows: rows.unwrap_or(1), cols, tensor: index })
}

/// RoPE divides by these.
fn check_rope_freqs(file: &GgufFile, weight: Option<&Weight>) -> Result<(), ModelFault> {
    let Some(weight) = weight else { return Ok(()) };
    let tensor = &file.tensors()[weight.tensor];
    let mut factors = vec![0.0; weight.cols];
    (weight.quant.dequantize)(file.data(tensor), &mut factors);
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        None => Ok(()),
        Some(index) => Err(ModelFault::TensorValue { tensor: tensor.name.clone(), found: factors[index], index }),
    }
}

/// Tensors without a slot are harmless when nothing computes with them; a bias would be missed in the sum.
fn refuse_unplaced(file: &GgufFile, spec: &ModelSpec, by_slot: &HashMap<(TensorSlot, usize), Weight>) -> Result<(), ModelFault> {
    let placed: HashSet<usize> = by_slot.values().map(|weight| weight.tensor).collect();
    for (_, tensor) in file.tensors().iter().enumerate().filter(|(index, _)| !placed.contains(index)) {
        if tensor.name.ends_with(".bias") {
            return Err(ModelFault::UnplacedTensor { tensor: tensor.name.clone(), arch: spec.arch.name });
        }
        tracing::debug!(path = %file.path().display(), tensor = tensor.name, "tensor is not used");
    }
    Ok(())
}
