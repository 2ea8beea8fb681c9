//! Tests which mmproj files load, and how malformed ones are refused.

use std::sync::Arc;

use super::*;
use crate::{ModelError, Weights};
use fixtures::vision::{VisionModel, vision_models};
use gguf::{GgufBuilder, GgufFile, Value};

/// A family's file.
fn tiny(name: &str) -> GgufBuilder {
    vision_models().iter().find(|model| model.name == name).map(VisionModel::encoder).expect("a family")
}

fn load(file: &GgufBuilder) -> Result<VisionWeights, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmproj.gguf");
    file.write(&path).unwrap();
    VisionWeights::load(Arc::new(GgufFile::open(&path).unwrap()))
}

fn refusal(what: &str, file: &GgufBuilder) -> String {
    load(file).err().unwrap_or_else(|| panic!("{what} is accepted")).to_string()
}

#[test]
fn every_family_loads_and_gives_rows_as_wide_as_its_language_model() {
    for model in vision_models() {
        let vision = load(&model.encoder()).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        model.language_model().write(&path).unwrap();
        let language = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        assert_eq!(vision.spec.row_width(), language.spec.embedding_width(), "{}", model.name);
    }
}

/// Each row has a family, a key, a wrong value, and a part of the error, which must also name the key.
#[test]
fn malformed_hyperparameters_are_refused_by_key() {
    let rows: Vec<(&str, &str, Value, &str)> = vec![
        ("gemma3", "clip.projector_type", "gemma3nv".to_owned().into(), "is \"gemma3nv\", expected one of gemma3, gemma4v"),
        ("gemma3", "clip.has_vision_encoder", false.into(), "is false, expected true"),
        ("gemma3", "clip.vision.patch_size", 0u32.into(), "is 0, expected an integer from 1"),
        ("gemma3", "clip.vision.patch_size", u32::MAX.into(), "is 4294967295"),
        ("gemma3", "clip.vision.image_size", 8u32.into(), "is 8, expected an integer from 14"),
        ("gemma3", "clip.vision.block_count", 0u32.into(), "is 0, expected an integer from 1"),
        ("gemma3", "clip.vision.block_count", 1_000_000u32.into(), "is 1000000"),
        ("gemma3", "clip.vision.attention.head_count", 5u32.into(), "expected a divisor of the embedding length 64"),
        ("gemma3", "clip.vision.attention.head_count", 32u32.into(), "multiples of 4"),
        ("gemma3", "clip.vision.attention.head_count_kv", 3u32.into(), "expected a divisor of the 4 heads"),
        ("gemma3", "clip.vision.attention.layer_norm_epsilon", f32::NAN.into(), "expected a positive number"),
        ("gemma3", "clip.vision.image_mean", vec![0.5f32; 2].into(), "expected three"),
        ("gemma3", "clip.vision.image_std", vec![0.5f32, 0.0, 0.5].into(), "expected three"),
        ("gemma3", "clip.vision.projector.scale_factor", 1000u32.into(), "is 1000"),
        ("gemma3", "clip.use_silu", true.into(), "expected false"),
        ("gemma3", "clip.vision.feature_layer", vec![1i32, 2].into(), "expected no such key"),
        ("qwen25vl", "clip.vision.window_size", 13u32.into(), "is 13, expected at least 28 pixels"),
        ("qwen3vl", "clip.vision.is_deepstack_layers", gguf::Array::Bool(vec![true; 2]).into(), "expected one entry per layer (3)"),
    ];
    for (family, key, value, expected) in rows {
        let mut file = tiny(family);
        file.set(key, value);
        let error = refusal(key, &file);
        assert!(error.contains(key) && error.contains(expected), "{key}: {error}");
    }
    let error = refusal("a language model", &GgufBuilder::new().kv("general.architecture", "llama"));
    assert!(error.contains("general.architecture is \"llama\", expected \"clip\""), "{error}");
}

/// A tensor less, or a dimension more, is refused by the tensor's name. A bias less may be a model without it.
#[test]
fn tensors_that_are_missing_or_of_the_wrong_shape_are_refused_by_name() {
    for model in vision_models() {
        let whole = model.encoder();
        for index in 0..whole.tensors.len() {
            let name = whole.tensors[index].name.clone();
            let mut file = model.encoder();
            let tensor = &mut file.tensors[index];
            *tensor.dims.first_mut().unwrap() += 1;
            tensor.bytes.resize(tensor.dims.iter().product::<u64>() as usize * 4, 0);
            match load(&file) {
                Err(error) => {
                    assert!(error.to_string().contains("tensor") || error.to_string().contains("key"), "{}, {name}: {error}", model.name)
                }
                // Nothing reads the first. The length of the second is that of the language model's rows.
                Ok(_) => assert!(
                    ["resampler.pos_embed_k", "mm.input_projection.weight"].contains(&&*name),
                    "{}: {name} of another shape is accepted",
                    model.name
                ),
            }
            let mut file = model.encoder();
            file.tensors.remove(index);
            match load(&file) {
                Err(error) => assert!(names(&error, &name), "{}, {name}: {error}", model.name),
                Ok(_) => assert!(is_optional(&name), "{}: a file without {name} is accepted", model.name),
            }
        }
    }
}

/// Whether an error names a missing tensor, its bias, or the one that would have to hold its rows, too, or to take them as they are.
fn names(error: &ModelError, name: &str) -> bool {
    let error = error.to_string();
    let bias = name.replace(".weight", ".bias");
    error.contains(name)
        || error.contains(&bias)
        || name.contains("qkv") && error.contains("attn_q.")
        || (name.contains("ffn_gate") || name.contains("ffn_down")) && error.contains("ffn_up.")
        || name == "mm.patch_merger.weight" && error.contains("mm.1.")
}

/// Whether files of some models of a family lack the tensor.
fn is_optional(name: &str) -> bool {
    let ends = |all: &[&str]| all.iter().any(|end| name.ends_with(end));
    ends(&["q.bias", "k.bias", "v.bias", "qkv.bias", "attn_out.bias", "up.bias", "gate.bias", "down.bias", "patch_embd.bias"])
        || ends(&["weight.1", "ls1.weight", "ls2.weight", "img_break", "image_newline", "pos_embed_k"])
        || ["v.norm_embd.weight", "v.pre_ln.weight", "v.pre_ln.bias", "v.post_ln.bias", "mm.patch_merger.bias"].contains(&name)
        || ["mm.input_norm.weight", "mm.input_norm.bias", "mm.1.bias", "mm.2.bias"].contains(&name)
}

/// No change of a byte makes a file that is read out of bounds or that panics.
#[test]
fn damaged_files_are_refused_or_harmless() {
    for name in ["gemma3", "qwen3vl", "minicpmv"] {
        let bytes = tiny(name).build();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mmproj.gguf");
        let metadata = 6000.min(bytes.len());
        for at in (0..metadata).step_by(31) {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                std::fs::write(&path, &damaged).unwrap();
                if let Ok(file) = GgufFile::open(&path) {
                    let _ = VisionWeights::load(Arc::new(file));
                }
            }
        }
    }
}

#[test]
fn old_files_name_the_matrices_of_feed_forward_parts_the_wrong_way_round() {
    let vision = load(&tiny("llava")).unwrap();
    let up = vision.weights.get(crate::TensorRole::FfnUp, 0).unwrap();
    assert_eq!([up.rows, up.cols], [128, 64]);
    assert_eq!(vision.weights.file.tensors()[up.tensor].name, "v.blk.0.ffn_down.weight");
}

#[test]
fn a_grid_that_the_encoder_was_not_made_for_is_refused() {
    let spec = |name: &str| load(&tiny(name)).unwrap().spec;
    for (name, grid, expected) in [
        ("gemma3", [8, 6], "8 × 6 patches, expected 8 × 8"),
        ("qwen2vl", [5, 6], "expected multiples of 2"),
        ("qwen2vl", [0, 2], "expected multiples of 2"),
        ("gemma4", [3, 240], "expected at most 160 per side"),
    ] {
        let error = spec(name).check_grid(grid).unwrap_err();
        assert!(error.contains(expected), "{name}: {error}");
    }
    assert_eq!(spec("qwen2vl").num_rows([4, 6]), 6);
    assert_eq!(spec("pixtral").num_rows([3, 4]), 14);
    assert_eq!(spec("minicpmv").num_rows([3, 4]), 8);
}

/// Gemma 4's encoders may bound the inputs and outputs of their matrices, which no step computes.
#[test]
fn bounds_of_a_matrix_are_refused_and_those_of_an_unused_part_are_not() {
    let bound = |name: &str| tiny("gemma4").tensor_f32(name, &[1], &[4.0]);
    let text = refusal("a bound", &bound("v.blk.0.attn_q.input_max"));
    assert!(text.contains("v.blk.0.attn_q.input_max"), "{text}");
    let audio = bound("a.blk.0.attn_q.output_min").tensor_f32("a.blk.0.attn_q.weight", &[1], &[1.0]);
    assert!(load(&audio).is_ok());
}
