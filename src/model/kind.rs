//! GGUF files that are no models: told by name, since they are kept and offered beside models.

use super::error::ModelFault;
use crate::gguf::GgufFile;

/// Refuses adapters, projectors and the like.
pub(super) fn refuse_accessories(file: &GgufFile) -> Result<(), ModelFault> {
    let kind = file.get_str("general.type").unwrap_or_default();
    let architecture = file.architecture().unwrap_or_default();
    let is_lora =
        kind == "adapter" || file.get("adapter.type").is_some() || file.tensors().iter().any(|tensor| tensor.name.ends_with(".lora_a"));
    let what = if is_lora {
        "a LoRA adapter, which changes the weights of the model that it was trained on and is none itself: name that model's own file"
    } else if kind == "mmproj" || architecture == "clip" {
        "a multimodal projector (mmproj), which turns images or sound into another model's input: name that model's own file"
    } else if kind == "imatrix" || architecture == "imatrix" {
        "an importance matrix, which is used to quantise a model: name the model's own file"
    } else if architecture == "controlvector" {
        "a control vector, which steers another model: name that model's own file"
    } else {
        return Ok(());
    };
    Err(ModelFault::Accessory(what))
}

#[cfg(test)]
mod tests {
    use crate::gguf::{GgufBuilder, GgufFile};
    use crate::model::ModelSpec;

    #[test]
    fn accessories_are_named_for_what_they_are() {
        let typed = |kind: &str| GgufBuilder::new().kv("general.architecture", "llama").kv("general.type", kind);
        let of = |architecture: &str| GgufBuilder::new().kv("general.architecture", architecture);
        let cases = [
            (typed("adapter"), "a LoRA adapter"),
            (of("llama").kv("adapter.type", "lora"), "a LoRA adapter"),
            (of("llama").tensor_f32("blk.0.attn_q.weight.lora_a", &[2, 2], &[0.0; 4]), "a LoRA adapter"),
            (typed("mmproj"), "(mmproj)"),
            (of("clip"), "(mmproj)"),
            (typed("imatrix"), "an importance matrix"),
            (of("controlvector"), "a control vector"),
            (typed("model"), "llama."),
        ];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.gguf");
        for (builder, what) in cases {
            builder.write(&path).unwrap();
            let error = ModelSpec::from_gguf(&GgufFile::open(&path).unwrap()).unwrap_err().to_string();
            assert!(error.contains(what), "{what:?} is not in {error:?}");
        }
    }
}
