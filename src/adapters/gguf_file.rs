//! Opens GGUF files with adapters and control vectors.

use std::path::Path;

use engine::Adapter;
use gguf::{GgufFile, TensorInfo};
use model::{Quant, Weights};

use crate::budget::Budget;
use crate::{AdapterKind, OpenAdapter, control_vector, lora};

/// Opens a GGUF file.
///
/// # Errors
/// Says what of the file cannot be read, or does not fit the model.
pub fn open(path: &Path, weights: &Weights) -> Result<OpenAdapter, String> {
    refuse_other_formats(path)?;
    let file = GgufFile::open(path).map_err(|error| format!("at byte {}: {}", error.offset, error.fault))?;
    let opened = match file.architecture() {
        Some("controlvector") => {
            let adapter = Adapter { directions: control_vector::read(&file, weights)?, ..Adapter::default() };
            OpenAdapter { adapter, kind: AdapterKind::ControlVector, rank: 0, invocation: Vec::new(), unused: Vec::new() }
        }
        _ => lora::read(&file, weights)?,
    };
    file.verify_unchanged().map_err(|error| error.fault)?;
    Ok(opened)
}

fn refuse_other_formats(path: &Path) -> Result<(), String> {
    match path.extension().and_then(|end| end.to_str()) {
        Some("safetensors" | "json") => Err("is a part of PEFT's folder: give the folder, which holds adapter_config.json too".to_owned()),
        Some("bin" | "pt" | "pth" | "ckpt") => {
            Err("is a pickle, which runs code when it is read: save the adapter as safetensors and give its folder".to_owned())
        }
        _ => Ok(()),
    }
}

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
