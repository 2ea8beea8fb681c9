//! The names of the files in a folder, and their faults.

use convert::ConvertError;

pub const CONFIG: &str = "adapter_config.json";
pub const TENSORS: &str = "adapter_model.safetensors";

/// The fault of a file in the folder, with the file's name alone.
pub fn fault_of(error: ConvertError) -> String {
    match error {
        ConvertError::File { path, fault } => {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            format!("{name}: {fault}")
        }
        other => other.to_string(),
    }
}
