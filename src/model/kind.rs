//! Recognises GGUF files that are not models but are often stored and downloaded with models.

use crate::error::ModelFault;
use gguf::GgufFile;

/// Refuses LoRA adapters, projectors, importance matrices and control vectors. The error names the kind.
pub(super) fn refuse_accessories(file: &GgufFile) -> Result<(), ModelFault> {
    let kind = file.get_str("general.type").unwrap_or_default();
    let architecture = file.architecture().unwrap_or_default();
    let is_lora =
        kind == "adapter" || file.get("adapter.type").is_some() || file.tensors().iter().any(|tensor| tensor.name.ends_with(".lora_a"));
    let what = if is_lora {
        "a LoRA adapter, which changes the weights of another model: give the file of the model that it was trained on"
    } else if kind == "mmproj" || architecture == "clip" {
        "a multimodal projector (mmproj), which turns images or sound into input of another model: give that model's file"
    } else if kind == "imatrix" || architecture == "imatrix" {
        "an importance matrix, which is used to quantise a model: give the model's file"
    } else if architecture == "controlvector" {
        "a control vector, which steers another model: give that model's file"
    } else {
        return Ok(());
    };
    Err(ModelFault::Accessory(what))
}

#[cfg(test)]
mod tests {
    use crate::ModelSpec;
    use gguf::{GgufBuilder, GgufFile};

    #[test]
    fn files_that_are_not_models_are_refused_by_their_kind() {
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
