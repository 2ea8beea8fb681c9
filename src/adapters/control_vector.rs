//! Reads control vectors: a direction per layer, which is added to the residual stream behind the layer.

use engine::Direction;
use gguf::GgufFile;
use model::{Weights, arch::Arch};

use crate::budget::Budget;
use crate::numbers::numbers;

/// The directions in the order of their layers.
///
/// # Errors
/// Names the key or the tensor that does not fit the model.
pub fn read(file: &GgufFile, weights: &Weights) -> Result<Vec<Direction>, String> {
    check_hint(file, weights)?;
    let (layers, hidden) = (weights.spec.num_layers(), weights.spec.hidden_dim);
    let mut budget = Budget::default();
    let mut directions = Vec::new();
    for tensor in file.tensors() {
        let number = tensor.name.strip_prefix("direction.").and_then(|text| text.parse().ok().filter(|n: &usize| n.to_string() == text));
        let Some(layer) = number else {
            return Err(format!("tensor {:?} is not part of a control vector, expected direction.1, direction.2, …", tensor.name));
        };
        if layer == 0 || layer >= layers {
            return Err(format!("tensor {}: the model has directions behind layers 1 to {}", tensor.name, layers.saturating_sub(1)));
        }
        if tensor.dims[0] != hidden as u64 || tensor.elements() != hidden as u64 {
            return Err(format!("tensor {} has shape {:?}, expected [{hidden}], the model's width", tensor.name, tensor.dims));
        }
        directions.push(Direction { layer, vector: numbers(file, tensor, &mut budget)? });
    }
    if directions.is_empty() {
        return Err("the control vector has no direction".to_owned());
    }
    if let Some(count) = file.get("controlvector.layer_count")
        && count.as_int() != Some(directions.len() as i128)
    {
        let found = directions.len();
        return Err(format!("controlvector.layer_count is {count:?}, but the file has {found} directions: is it complete?"));
    }
    directions.sort_by_key(|direction| direction.layer);
    Ok(directions)
}

/// Refuses a vector for another architecture. Some tools write the model's type in `transformers` as the hint, so a name that is no
/// architecture says nothing.
fn check_hint(file: &GgufFile, weights: &Weights) -> Result<(), String> {
    let own = weights.file.architecture().unwrap_or_default();
    match file.get("controlvector.model_hint").map(|hint| hint.as_str()) {
        Some(None) => Err("controlvector.model_hint is not a string".to_owned()),
        Some(Some(hint)) if hint != own && Arch::by_name(hint).is_some() => {
            Err(format!("controlvector.model_hint is {hint:?}: the vector is for that architecture, and the model is of {own:?}"))
        }
        _ => Ok(()),
    }
}
