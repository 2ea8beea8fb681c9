//! Opens GGUF files with adapters and control vectors.

use std::path::Path;

use engine::Adapter;
use gguf::GgufFile;
use model::Weights;

use crate::open_adapter::{AdapterKind, OpenAdapter};
use crate::{control_vector, lora};

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
