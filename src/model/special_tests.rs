//! Tests malformed files with latent attention, AltUp, per-layer inputs and adjugate experts, and YaRN's factors.

use std::sync::{Arc as Shared, LazyLock};

use super::*;
use crate::spec::RopeScaling;
use fixtures::architectures::{Architecture, architectures};
use gguf::{GgufBuilder, GgufFile, Value};

/// The tiny model with this name.
fn tiny(name: &str) -> GgufBuilder {
    static ALL: LazyLock<Vec<Architecture>> = LazyLock::new(|| architectures().1);
    ALL.iter().find(|model| model.name == name).expect("a tiny model").build()
}

fn load(file: &GgufBuilder) -> Result<Weights, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path).unwrap();
    Weights::load(Shared::new(GgufFile::open(&path).unwrap()))
}

/// Each row has a model, a key, an invalid value for it, and a part of the expected error, which must also name the key.
#[test]
fn malformed_hyperparameters_are_refused_by_key() {
    let rows: Vec<(&str, &str, Value, &str)> = vec![
        ("deepseek2-moe", "attention.kv_lora_rank", 0u32.into(), "is 0, expected an integer from 1"),
        ("deepseek2-moe", "attention.key_length_mla", 62u32.into(), "is 62, expected at least the 64 rotated elements"),
        ("deepseek2-moe", "attention.key_length_mla", 0u32.into(), "is 0, expected an integer from 1"),
        ("deepseek2-moe", "attention.value_length_mla", u32::MAX.into(), "is 4294967295"),
        ("deepseek2-moe", "attention.head_count", 100_000_000u32.into(), "is 100000000"),
        ("deepseek2-moe", "rope.dimension_count", 63u32.into(), "is 63, expected an even number"),
        ("gemma3n-dense", "embedding_length_per_layer_input", 0u32.into(), "is 0, expected an integer from 1"),
        ("gemma3n-dense", "embedding_length_per_layer_input", (1u32 << 30).into(), "is 1073741824, expected at most"),
        ("gemma3n-dense", "altup.num_inputs", 5u32.into(), "is 5, expected 4"),
        ("gemma3n-dense", "altup.active_idx", 1u32.into(), "is 1, expected 0"),
        ("gemma3n-dense", "activation_sparsity_scale", vec![1.0f32; 3].into(), "an array of 3 f32"),
        ("gemma3n-dense", "activation_sparsity_scale", vec![f32::NAN; 22].into(), "one number or minus infinity per layer (22)"),
        ("gemma3n-dense", "attention.shared_kv_layers", 22u32.into(), "is 22, expected fewer than the 22 layers"),
        ("gemma4-dense", "attention.shared_kv_layers", 10u32.into(), "is 10, expected fewer than the 10 layers"),
        ("gemma4-dense", "attention.shared_kv_layers", 6u32.into(), "is 6, expected a number that leaves an earlier layer"),
        ("gemma4-dense", "embedding_length_per_layer_input", u32::MAX.into(), "is 4294967295"),
        ("grovemoe-moe", "experts_per_group", 0u32.into(), "is 0, expected an integer from 1 to 2"),
        ("grovemoe-moe", "expert_group_scale", 0.0f32.into(), "is 0, expected a positive number"),
    ];
    for (model, key, value, expected) in rows {
        let mut file = tiny(model);
        let key = format!("{}.{key}", model.rsplit_once('-').unwrap().0);
        file.set(&key, value);
        let error = load(&file).err().unwrap_or_else(|| panic!("{key}: {expected}")).to_string();
        assert!(error.contains(&key) && error.contains(expected), "{key}: {error}");
    }
}

#[test]
fn tensors_of_the_wrong_shape_are_refused_by_name() {
    for (model, name, dims, expected) in [
        ("gemma3n-dense", "altup_proj.weight", &[64, 64, 2][..], "[64, 64, 3]"),
        ("gemma3n-dense", "altup_unembd_proj.weight", &[64, 192], "[64, 64, 3]"),
        ("gemma3n-dense", "blk.3.altup_router.weight", &[64, 3], "[64, 4]"),
        ("gemma3n-dense", "blk.0.altup_predict_coef.weight", &[16, 4], "[4, 16]"),
        ("gemma4-dense", "per_layer_token_embd.weight", &[319, 128], "[320, 128]"),
        ("deepseek2-moe", "blk.0.attn_k_b.weight", &[64, 512], "[128, 512, 1]"),
        ("minicpm3-dense", "blk.1.attn_kv_b.weight", &[512, 127], "[512, 128]"),
        ("grovemoe-moe", "blk.1.ffn_down_chexps.weight", &[64, 128], "[64, 128, 2]"),
    ] {
        let mut file = tiny(model);
        let tensor = file.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor");
        tensor.bytes.resize(dims.iter().product::<u64>() as usize * 4, 0);
        tensor.dims = dims.to_vec();
        let error = load(&file).err().unwrap_or_else(|| panic!("{name}")).to_string();
        assert!(error.contains(&format!("tensor {name} has shape {dims:?}, expected {expected}")), "{error}");
    }
    for (model, name) in [
        ("gemma3n-dense", "blk.21.laurel_l.weight"),
        ("gemma4-dense", "per_layer_proj_norm.weight"),
        ("gemma4-moe", "blk.2.ffn_gate_inp.scale"),
        ("gemma4-moe", "blk.2.ffn_up.weight"),
        ("kimi-linear-moe", "blk.0.attn_v_b.weight"),
    ] {
        let mut file = tiny(model);
        file.tensors.retain(|tensor| tensor.name != name);
        let error = load(&file).err().unwrap_or_else(|| panic!("{name}")).to_string();
        assert!(error.contains(&format!("tensor {name} is missing")), "{error}");
    }
}

#[test]
fn activation_sparsity_is_read_per_layer() {
    let mut file = tiny("gemma3n-dense");
    let cutoffs = |file: &GgufBuilder| load(file).unwrap().spec.layers.iter().map(|layer| layer.gate_cutoff).collect::<Vec<_>>();
    let usual = cutoffs(&file);
    assert!(usual[..10].iter().all(|cutoff| (cutoff.unwrap() - 1.644_853_6).abs() < 1e-6) && usual[10..].iter().all(Option::is_none));
    let mut scales = vec![f32::NEG_INFINITY; 22];
    scales[3] = 0.5;
    file.set("gemma3n.activation_sparsity_scale", scales);
    assert_eq!(cutoffs(&file).iter().enumerate().filter_map(|(i, cutoff)| Some((i, (*cutoff)?))).collect::<Vec<_>>(), [(3, 0.5)]);
}

/// DeepSeek-V2-Lite: factor 40, mscale and mscale_all_dim 0.707. The published code multiplies scores by (0.1 · 0.707 · ln 40 + 1)² and
/// does not scale sine and cosine.
#[test]
fn yarn_scales_the_scores_of_latent_attention() {
    let yarn = |file: GgufBuilder, arch: &str| {
        let file = file.kv(&format!("{arch}.rope.scaling.type"), "yarn").kv(&format!("{arch}.rope.scaling.factor"), 40.0f32);
        let spec = load(&file).unwrap().spec;
        let latent = spec.layers[0].latent().expect("latent attention");
        let RopeScaling::Yarn { attn_factor, .. } = latent.rope.expect("a rotation").scaling else { panic!("{latent:?}") };
        (attn_factor, latent.scale * 192f32.sqrt())
    };
    let close = |(a, b): (f32, f32), (c, d): (f32, f32)| (a - c).abs() < 1e-5 && (b - d).abs() < 1e-4;
    let got = yarn(tiny("deepseek2-moe").kv("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f32), "deepseek2");
    assert!(close(got, (1.0, 1.260_804_6f32.powi(2))), "{got:?}");
    let usual = 0.1 * 40f32.ln() + 1.0;
    let got = yarn(tiny("deepseek2-moe"), "deepseek2");
    assert!(close(got, (usual, usual * usual)), "{got:?}");
}
