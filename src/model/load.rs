//! Finds the tensor of every slot in an open file and checks its shape and type.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::arch::Fused;
use crate::error::{ModelError, ModelFault};
use crate::quant::{QUANTS, Quant};
use crate::slots::TensorSlot;
use crate::spec::ModelSpec;
use crate::weights::{Weight, Weights};
use gguf::{GgufFile, TensorInfo};

type BySlot = HashMap<(TensorSlot, usize), Weight>;

impl Weights {
    /// Validates the model in an open file. Copies nothing: the weights stay in the file's map.
    pub fn load(file: Arc<GgufFile>) -> Result<Self, ModelError> {
        let spec = ModelSpec::from_gguf(&file)?;
        match assign_tensors(&file, &spec) {
            Ok(by_slot) => Ok(Weights { spec, file, by_slot }),
            Err(fault) => Err(ModelError { path: file.path().to_owned(), fault }),
        }
    }
}

fn assign_tensors(file: &GgufFile, spec: &ModelSpec) -> Result<BySlot, ModelFault> {
    file.verify_unchanged().map_err(|error| ModelFault::Changed(error.fault))?;
    let mut by_slot = HashMap::new();
    for fused in spec.arch.fused {
        for layer in 0..spec.num_layers {
            assign_fused(file, spec, fused, layer, &mut by_slot)?;
        }
    }
    for (slot, required) in spec.slots().filter(|(slot, _)| !is_fused(spec, *slot)) {
        let layers = if slot.per_layer() { spec.num_layers } else { 1 };
        for layer in 0..layers {
            let name = slot.name(layer);
            match file.tensor_index(&name) {
                Some(index) => {
                    let dims = slot.dims(spec);
                    let quant = check(&file.tensors()[index], &dims, slot.is_vector(spec))?;
                    let rows = dims[1..].iter().product();
                    by_slot.insert((slot, layer), Weight { quant, rows, cols: dims[0], tensor: index, offset: 0 });
                }
                None if required => return Err(ModelFault::MissingTensor { tensor: name, expected: slot.dims(spec) }),
                None => {}
            }
        }
    }
    for slot in [TensorSlot::RopeFreqs, TensorSlot::RopeFactorsLong, TensorSlot::RopeFactorsShort] {
        check_rope_factors(file, by_slot.get(&(slot, 0)))?;
    }
    refuse_unused_biases(file, spec, &by_slot)?;
    if let Some(&embedding) = by_slot.get(&(TensorSlot::TokenEmbd, 0)) {
        by_slot.entry((TensorSlot::Output, 0)).or_insert(embedding);
    }
    Ok(by_slot)
}

fn is_fused(spec: &ModelSpec, slot: TensorSlot) -> bool {
    spec.arch.fused.iter().any(|fused| fused.parts.contains(&slot))
}

/// Assigns the rows (or elements, if it is a vector) of one tensor to several slots.
fn assign_fused(file: &GgufFile, spec: &ModelSpec, fused: &Fused, layer: usize, by_slot: &mut BySlot) -> Result<(), ModelFault> {
    let name = fused.pattern.replace("{}", &layer.to_string());
    let parts = || fused.parts.iter().map(|slot| slot.dims(spec));
    let is_vector = fused.parts.iter().all(|slot| slot.is_vector(spec));
    let last = |dims: Vec<usize>| dims.last().copied().unwrap_or(0);
    let mut whole: Vec<usize> = parts().next().unwrap_or_default();
    if let Some(sum) = whole.last_mut() {
        *sum = parts().map(last).sum();
    }
    let Some(index) = file.tensor_index(&name) else { return Err(ModelFault::MissingTensor { tensor: name, expected: whole }) };
    let (quant, mut offset) = (check(&file.tensors()[index], &whole, is_vector)?, 0);
    for (&slot, dims) in fused.parts.iter().zip(parts()) {
        let weight = Weight { quant, rows: dims[1..].iter().product(), cols: dims[0], tensor: index, offset };
        offset += weight.num_bytes();
        by_slot.insert((slot, layer), weight);
    }
    Ok(())
}

/// Checks that a tensor has the expected dimensions (innermost first) and a type in `QUANTS`. A vector must be of a float type.
fn check(tensor: &TensorInfo, expected: &[usize], is_vector: bool) -> Result<&'static Quant, ModelFault> {
    let name = || tensor.name.clone();
    let expected: Vec<u64> = expected.iter().map(|&n| n as u64).collect();
    // A file may leave out trailing dimensions of 1.
    let dim = |dims: &[u64], i: usize| dims.get(i).copied().unwrap_or(1);
    if (0..expected.len().max(tensor.dims.len())).any(|i| dim(&expected, i) != dim(&tensor.dims, i)) {
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

/// Checks that RoPE's frequency factors are positive, because frequencies are divided by them.
fn check_rope_factors(file: &GgufFile, weight: Option<&Weight>) -> Result<(), ModelFault> {
    let Some(weight) = weight else { return Ok(()) };
    let tensor = &file.tensors()[weight.tensor];
    let mut factors = vec![0.0; weight.cols];
    (weight.quant.dequantize)(file.data(tensor), &mut factors);
    match factors.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
        None => Ok(()),
        Some(index) => Err(ModelFault::TensorValue { tensor: tensor.name.clone(), found: factors[index], index }),
    }
}

/// Refuses a bias that has no slot, because leaving it out would change the results. Other tensors without a slot are logged and ignored.
fn refuse_unused_biases(file: &GgufFile, spec: &ModelSpec, by_slot: &BySlot) -> Result<(), ModelFault> {
    let used: HashSet<usize> = by_slot.values().map(|weight| weight.tensor).collect();
    for (_, tensor) in file.tensors().iter().enumerate().filter(|(index, _)| !used.contains(index)) {
        if tensor.name.ends_with(".bias") {
            return Err(ModelFault::UnusedBias { tensor: tensor.name.clone(), arch: spec.arch.name });
        }
        tracing::debug!(path = %file.path().display(), tensor = tensor.name, "tensor is not used");
    }
    Ok(())
}
