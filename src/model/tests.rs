//! Tests dequantisers against golden blocks, tiny models of every architecture (valid and invalid), and real files.

use std::sync::Arc as Shared;

use super::testing::TinyModel;
use super::*;
use gguf::{Array, GGML_TYPES, GgufBuilder, GgufFile, Value, ggml_type};

#[test]
fn every_dequantiser_gives_the_bits_of_the_gguf_package() {
    for quant in QUANTS {
        let path = format!("{}/../../tests/golden/quants/{}.bin", env!("CARGO_MANIFEST_DIR"), quant.name);
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let blocks = file.len() / (quant.block_bytes + 4 * quant.block_size);
        let (src, expected) = file.split_at(blocks * quant.block_bytes);
        assert!(blocks >= 6 && expected.len() == blocks * quant.block_size * 4, "{path}");
        let mut weights = vec![f32::NAN; blocks * quant.block_size];
        (quant.dequantize)(src, &mut weights);
        for (i, (weight, expected)) in weights.iter().zip(expected.as_chunks::<4>().0).enumerate() {
            let expected = f32::from_le_bytes(*expected);
            assert_eq!(weight.to_bits(), expected.to_bits(), "{} weight {i}: {weight} is not {expected}", quant.name);
        }
    }
}

/// The number of bytes of a mapped file that this process has touched, as the kernel counts them.
#[cfg(target_os = "linux")]
fn bytes_touched(path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let path = path.canonicalize().unwrap().display().to_string();
    let mut lines = maps.lines();
    let mut kilobytes = 0;
    while lines.any(|line| line.ends_with(&path)) {
        let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        kilobytes += resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
    }
    kilobytes << 10
}

#[test]
#[ignore = "needs PENSTOCK_TEST_MODELS"]
fn real_models_load() {
    for (name, (arch, layers, tensors)) in
        fixtures::REAL_MODELS.into_iter().zip([("llama", 30, 273), ("qwen2", 24, 291), ("gemma3", 18, 237)])
    {
        let path = fixtures::real_model(name);
        let file = Shared::new(GgufFile::open(&path).unwrap());
        #[cfg(target_os = "linux")]
        {
            let (touched, size) = (bytes_touched(&path), std::fs::metadata(&path).unwrap().len());
            assert!((1..size / 4).contains(&touched), "{name}: opening touched {touched} of {size} bytes, expected the metadata only");
        }
        let weights = Weights::load(file.clone()).unwrap();
        assert_eq!((weights.spec.arch.name, weights.spec.num_layers()), (arch, layers));
        assert_eq!(weights.by_role.len(), tensors);
        let norm = weights.get(TensorRole::AttnNorm, layers - 1).unwrap();
        let mut row = vec![0.0; norm.cols];
        (norm.quant.dequantize)(weights.data(norm), &mut row);
        assert!(row.iter().all(|x| x.is_finite()) && row.iter().any(|x| *x != 0.0));
    }
}

fn load(file: &GgufBuilder) -> Result<Weights, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    file.write(&path).unwrap();
    Weights::load(Shared::new(GgufFile::open(&path).unwrap()))
}

fn llama() -> GgufBuilder {
    TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build()
}

#[test]
fn quants_and_ggml_types_have_the_same_layouts() {
    for quant in QUANTS {
        let row = ggml_type(quant.id).unwrap();
        assert_eq!((row.name, row.block_size, row.block_bytes), (quant.name, quant.block_size as u64, quant.block_bytes as u64));
        assert_eq!(Quant::by_id(quant.id).unwrap().name, quant.name);
    }
    assert!(GGML_TYPES.windows(2).all(|pair| pair[0].id < pair[1].id));
}

#[test]
fn every_half_is_converted_exactly() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (dequant::f16_to_f32(bits), half::f16::from_bits(bits).to_f32_const());
        assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{bits:#x}: {ours} is not {theirs}");
    }
}

#[test]
fn every_architecture_loads_with_every_quant() {
    for tiny in TinyModel::all() {
        for quant in QUANTS {
            let tiny = TinyModel { quant, ..tiny.clone() };
            let weights = load(&tiny.build()).unwrap();
            let spec = &weights.spec;
            assert_eq!((spec.hidden_dim, spec.num_layers(), spec.vocab_size), (256, tiny.num_layers, 320));
            for (role, _) in spec.global_roles().into_iter().chain(spec.layer_roles(0)) {
                let Some(weight) = weights.get(role, 0) else { continue };
                let dims = role.dims(spec, 0).unwrap();
                assert_eq!((weight.rows, weight.cols), (dims[1..].iter().product(), dims[0]));
                let mut values = vec![0.0; weight.rows * weight.cols];
                (weight.quant.dequantize)(weights.data(weight), &mut values);
                let mean = values.iter().sum::<f32>() / values.len() as f32;
                let std = (values.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / values.len() as f32).sqrt();
                assert!(values.len() < 4096 || mean.abs() < 0.03 && (0.02..0.2).contains(&std), "{} {role:?}: {mean} {std}", quant.name);
            }
        }
    }
}

#[test]
fn a_model_without_an_output_matrix_uses_its_token_embedding() {
    let weights = load(&llama()).unwrap();
    let (output, embedding) = (weights.get(TensorRole::Output, 0).unwrap(), weights.get(TensorRole::TokenEmbd, 0).unwrap());
    assert_eq!(output.tensor, embedding.tensor);
}

#[test]
fn gemma_3_gives_global_layers_another_rope_base_and_scaling_than_windowed_layers() {
    let file = TinyModel::new(Arch::by_name("gemma3").unwrap())
        .build()
        .kv("gemma3.rope.scaling.type", "linear")
        .kv("gemma3.rope.scaling.factor", 8.0f32);
    let spec = load(&file).unwrap().spec;
    let attention = |layer: usize| *spec.layers[layer].attention().unwrap();
    let windowed: Vec<bool> = (0..7).map(|layer| attention(layer).window.is_some()).collect();
    let rope = |layer| attention(layer).rope.unwrap();
    assert_eq!(windowed, [true, true, true, true, true, false, true]);
    assert_eq!((rope(0).theta, rope(5).theta), (10_000.0, 1_000_000.0));
    assert_eq!((rope(0).scaling, rope(5).scaling), (RopeScaling::None, RopeScaling::Linear { factor: 8.0 }));
}

#[test]
fn three_positions_rotate_sections_of_pairs() {
    use crate::spec::RopeSections;
    let sections = |lengths: Vec<i32>| {
        let spec = load(&TinyModel::new(Arch::by_name("glm4").unwrap()).build().kv("glm4.rope.dimension_sections", lengths)).unwrap().spec;
        (spec.rope_sections, spec.rope_pairing)
    };
    let some = |pairs| Some(RopeSections { pairs, interleaved: false });
    assert_eq!(sections(vec![8, 12, 12]), (some([8, 12, 12]), RopePairing::Halves));
    assert_eq!(sections(vec![8, 12, 12, 0]), (some([8, 12, 12]), RopePairing::Halves));
    assert_eq!(sections(vec![0; 4]), (None, RopePairing::Adjacent));
    for other in [vec![8, 12, 8, 4], vec![16, 16], vec![8, 12, -1]] {
        assert_eq!(sections(other), (None, RopePairing::Halves), "rows then have one position");
    }
    let of = |pairs, interleaved| (0..8).map(|pair| RopeSections { pairs, interleaved }.position_of(pair)).collect::<Vec<_>>();
    assert_eq!(of([2, 3, 2], false), [0, 0, 1, 1, 1, 2, 2, 0]);
    assert_eq!(of([3, 3, 2], true), [0, 1, 2, 0, 1, 2, 0, 1]);
    assert_eq!(of([4, 2, 1], true), [0, 1, 2, 0, 1, 0, 0, 0]);
}

#[test]
fn all_parameters_of_yarn_are_read() {
    let file = llama()
        .kv("llama.rope.scaling.type", "yarn")
        .kv("llama.rope.scaling.factor", 4.0f32)
        .kv("llama.rope.scaling.original_context_length", 128u32);
    let Weights { spec, .. } = load(&file).unwrap();
    let rope = spec.attention().unwrap().rope.unwrap();
    let RopeScaling::Yarn { factor, original_context, attn_factor, beta_fast, beta_slow } = rope.scaling else { panic!("{rope:?}") };
    assert_eq!((factor, original_context, beta_fast, beta_slow), (4.0, 128, 32.0, 1.0));
    assert!((attn_factor - 1.138_629_4).abs() < 1e-6);
}

/// Each row has a key, an invalid value for it, and a part of the expected error, which must also name the key.
#[test]
fn invalid_metadata_is_refused_by_key() {
    let long = || vec!["x".to_owned(); 319];
    let rows: Vec<(&str, Value, &str)> = vec![
        ("general.architecture", "lama".into(), "unknown architecture \"lama\", expected one of llama, mistral3, qwen"),
        ("general.architecture", 7u32.into(), "expected a string"),
        ("llama.attention.head_count", 0u32.into(), "is 0, expected an integer from 1 to 2147483647 for every layer"),
        ("llama.attention.head_count", vec![4i32].into(), "an array of 1 i32, expected one entry from 0 to 2147483647 per layer (2)"),
        ("llama.attention.head_count", (1u32 << 31).into(), "is 2147483648"),
        ("llama.attention.head_count_kv", 0u32.into(), "is 0"),
        ("llama.attention.head_count_kv", (1u32 << 31).into(), "is 2147483648"),
        ("llama.attention.head_count_kv", 3u32.into(), "a divisor of the 4 heads"),
        ("llama.block_count", 0u32.into(), "is 0"),
        ("llama.block_count", (1u32 << 31).into(), "expected an integer from 1 to 10000"),
        ("llama.block_count", (-1i32).into(), "is -1"),
        ("llama.block_count", "two".into(), "is \"two\""),
        ("llama.embedding_length", u64::MAX.into(), "is 18446744073709551615"),
        ("llama.context_length", 0u32.into(), "is 0"),
        ("llama.attention.key_length", 63u32.into(), "an even number"),
        ("llama.nextn_predict_layers", 2u32.into(), "is 2, expected fewer than the 2 layers"),
        ("llama.attention.shared_kv_layers", 2u32.into(), "is 2, expected fewer than the 2 layers"),
        ("llama.residual_scale", (-1.0f32).into(), "is -1, expected a positive number"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0f32.into(), "is 0, expected a positive number"),
        ("llama.attention.layer_norm_rms_epsilon", f32::NAN.into(), "is NaN"),
        ("llama.rope.freq_base", f32::INFINITY.into(), "is inf"),
        ("llama.rope.freq_base", (-1.0f32).into(), "is -1"),
        ("llama.rope.dimension_count", 66u32.into(), "up to the 64"),
        ("llama.rope.scaling.type", "ntk".into(), "none, linear, yarn or longrope"),
        ("llama.expert_count", 65_537u32.into(), "from 0 to 65536"),
        ("llama.attn_logit_softcapping", (-1.0f32).into(), "is -1, expected a positive number"),
        ("llama.rope.scaling.attn_factor", 1.5f32.into(), "1 or no such key with linear scaling"),
        ("tokenizer.ggml.tokens", long().into(), "320 (the rows of token_embd.weight)"),
        ("tokenizer.ggml.scores", vec![0.0f32; 319].into(), "an array of 319 f32, expected an array of 320 f32"),
        ("tokenizer.ggml.scores", vec![16_777_217i32; 320].into(), "an array with 16777217 at index 0, which a 32-bit float cannot hold"),
        ("tokenizer.ggml.scores", long().into(), "an array of 319 string, expected an array of 320 f32"),
        ("tokenizer.ggml.token_type", vec![1i32; 3].into(), "an array of 3 i32"),
        ("tokenizer.ggml.token_type", vec![1.0f32; 320].into(), "expected an array of 320 i32"),
        ("tokenizer.ggml.bos_token_id", 320u32.into(), "is 320, expected an id below 320, the size of the vocabulary"),
        ("tokenizer.ggml.eos_token_id", u32::MAX.into(), "is 4294967295"),
        ("tokenizer.ggml.eos_token_id", (-1i32).into(), "is -1"),
    ];
    for (key, value, expected) in rows {
        let error = load(&llama().kv(key, value)).err().unwrap_or_else(|| panic!("{key} {expected}")).to_string();
        assert!(error.contains(expected) && (error.contains(key) || key == "general.architecture"), "{key}: {error}");
        assert!(error.contains("model.gguf"), "{error}");
    }
    for key in ["general.architecture", "llama.block_count", "llama.attention.layer_norm_rms_epsilon", "llama.feed_forward_length"] {
        let mut file = llama();
        file.remove(key);
        assert!(load(&file).err().unwrap().to_string().contains(&format!("{key} is missing")));
    }
}

/// Tests further keys, for features that Llama does not have.
#[test]
fn invalid_metadata_of_experts_and_windows_is_refused_by_key() {
    let rows: Vec<(&str, &str, Value, &str)> = vec![
        ("qwen3moe", "expert_gating_func", 4u32.into(), "is 4, expected 1 (softmax), 2 (sigmoid) or 3"),
        ("qwen3moe", "expert_group_count", 3u32.into(), "is 3, expected a divisor of the 5 experts"),
        ("qwen3moe", "expert_used_count", 6u32.into(), "is 6, expected an integer from 1 to 5"),
        ("qwen3moe", "expert_count", 0u32.into(), "is 0, expected an integer from 1"),
        ("qwen3moe", "leading_dense_block_count", 3u32.into(), "is 3, expected at most the 2 layers"),
        ("qwen3moe", "expert_weights_norm", 1u32.into(), "is 1, expected a boolean"),
        ("qwen3moe", "expert_weights_scale", f32::NAN.into(), "is NaN, expected a positive number"),
        ("gemma3", "attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 3])), "expected one entry per layer (7)"),
        ("gemma3", "attention.sliding_window_pattern", vec![2i32; 7].into(), "expected an array of booleans"),
        ("gemma3", "attention.sliding_window", (-4i32).into(), "is -4, expected an integer from 0"),
        ("phi3", "rope.scaling.attn_factor", (-1.0f32).into(), "is -1, expected a positive number"),
    ];
    for (arch, suffix, value, expected) in rows {
        let key = format!("{arch}.{suffix}");
        let file = TinyModel::new(Arch::by_name(arch).unwrap()).build().kv(&key, value);
        let error = load(&file).err().unwrap_or_else(|| panic!("{key} {expected}")).to_string();
        assert!(error.contains(expected) && error.contains(&key), "{key}: {error}");
    }
}

#[test]
fn invalid_tensors_are_refused_by_name() {
    let change = |name: &str, edit: &dyn Fn(&mut gguf::writer::TensorData)| {
        let mut file = TinyModel { optional: true, ..TinyModel::new(&ARCHS[0]) }.build();
        edit(file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap());
        load(&file).err().unwrap().to_string()
    };
    let error = change("blk.1.attn_q.weight", &|tensor| tensor.name = "blk.1.other".to_owned());
    assert!(error.contains("tensor blk.1.attn_q.weight is missing, expected one of shape [256, 256] (innermost first)"), "{error}");
    let error = change("blk.0.ffn_down.weight", &|tensor| tensor.dims = vec![128, 512]);
    assert!(error.contains("tensor blk.0.ffn_down.weight has shape [128, 512], expected [256, 256]"), "{error}");
    let error = change("blk.0.ffn_up.weight", &|tensor| tensor.type_id = 26);
    assert!(error.contains("tensor blk.0.ffn_up.weight is of type I32, expected one of F32, F16, Q4_0"), "{error}");
    let error = change("blk.0.attn_norm.weight", &|tensor| (tensor.type_id, tensor.bytes) = (8, vec![0; 272]));
    assert!(error.contains("tensor blk.0.attn_norm.weight is of type Q8_0, expected F32, F16 or BF16"), "{error}");
    let error = change("rope_freqs.weight", &|tensor| tensor.bytes[4..8].copy_from_slice(&0f32.to_le_bytes()));
    assert!(error.contains("tensor rope_freqs.weight holds 0 at index 1"), "{error}");
    let extra = llama().tensor_f32("blk.0.ffn_norm.bias", &[256], &[0.0; 256]);
    assert!(load(&extra).err().unwrap().to_string().contains("tensor blk.0.ffn_norm.bias is not part of architecture llama"));
    assert!(load(&llama().tensor_f32("blk.0.other", &[2], &[0.0; 2])).is_ok());
}

#[test]
fn fused_tensors_and_stacks_of_experts_must_have_the_shape_of_all_their_parts() {
    let change = |arch: &str, name: &str, dims: &[u64]| {
        let mut file = TinyModel::new(Arch::by_name(arch).unwrap()).build();
        file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap().dims = dims.to_vec();
        load(&file).err().unwrap().to_string()
    };
    for (arch, name, dims, expected) in [
        ("phi3", "blk.1.attn_qkv.weight", &[256, 511][..], "has shape [256, 511], expected [256, 512]"),
        ("phi3", "blk.0.ffn_up.weight", &[512, 256], "has shape [512, 256], expected [256, 512]"),
        ("phi3", "blk.0.ffn_up.weight", &[256, 511], "has shape [256, 511], expected [256, 512]"),
        ("gpt2", "blk.0.attn_qkv.bias", &[500], "has shape [500], expected [512]"),
        ("gpt2", "position_embd.weight", &[256, 511], "has shape [256, 511], expected [256, 512]"),
        ("qwen3moe", "blk.0.ffn_gate_exps.weight", &[256, 256, 4], "has shape [256, 256, 4], expected [256, 256, 5]"),
        ("qwen3moe", "blk.0.ffn_down_exps.weight", &[256, 1280], "has shape [256, 1280], expected [256, 256, 5]"),
    ] {
        let error = change(arch, name, dims);
        assert!(error.contains(&format!("tensor {name} {expected}")), "{error}");
    }
    for (arch, name) in [("phi3", "rope_factors_short.weight"), ("qwen2moe", "blk.0.ffn_up_exps.weight")] {
        let mut file = TinyModel::new(Arch::by_name(arch).unwrap()).build();
        file.tensors.retain(|tensor| tensor.name != name);
        assert!(load(&file).err().unwrap().to_string().contains(&format!("tensor {name} is missing")));
    }
    let mut file = TinyModel::new(Arch::by_name("qwen3moe").unwrap()).build();
    file.set("qwen3moe.expert_used_count", 6u32);
    assert!(load(&file).err().unwrap().to_string().contains("qwen3moe.expert_used_count is 6, expected an integer from 1 to 5"));
    file.remove("qwen3moe.expert_count");
    assert!(load(&file).err().unwrap().to_string().contains("qwen3moe.expert_count is missing"));
    let dense = TinyModel::new(Arch::by_name("qwen2").unwrap()).build().kv("qwen2.expert_count", 8u32);
    assert!(load(&dense).err().unwrap().to_string().contains("qwen2.expert_count is 8, expected 0 or no such key (not supported)"));
}

#[test]
fn gemma_2_files_without_window_and_caps_get_defaults_and_the_27b_model_its_own_scale() {
    let arch = Arch::by_name("gemma2").unwrap();
    let mut file = TinyModel { head_dim: 128, ..TinyModel::new(arch) }.build();
    file.remove("gemma2.attention.sliding_window");
    // A window as long as the context still tells the layers apart.
    let spec = load(&file).unwrap().spec;
    let attention = |layer: usize| *spec.layers[layer].attention().unwrap();
    assert_eq!((attention(0).soft_cap, spec.final_soft_cap), (Some(50.0), Some(30.0)));
    assert_eq!([0, 1, 2].map(|layer| attention(layer).window), [Some(4096), None, Some(4096)]);
    assert_eq!(attention(0).scale, 1.0 / 128f32.sqrt());
    let large = TinyModel { num_layers: 46, head_dim: 128, ..TinyModel::new(arch) }.build();
    assert_eq!(load(&large).unwrap().spec.attention().unwrap().scale, 1.0 / 64f32.sqrt());
    let uncapped = file.kv("gemma2.attn_logit_softcapping", 0.0f32);
    assert_eq!(load(&uncapped).unwrap().spec.attention().unwrap().soft_cap, None);
}

#[test]
fn a_file_says_how_its_texts_become_vectors() {
    let of = |kind: Option<u32>| {
        let file = kind.into_iter().fold(llama(), |file, kind| file.kv("llama.pooling_type", kind));
        load(&file).map(|weights| weights.spec.pooling).map_err(|error| error.to_string())
    };
    let kinds = [None, Some(0), Some(1), Some(2), Some(3)].map(|kind| of(kind).unwrap());
    assert_eq!(kinds, [Pooling::Last, Pooling::Last, Pooling::Mean, Pooling::First, Pooling::Last]);
    assert!(of(Some(4)).unwrap_err().contains("cls.output.weight is missing, expected the classifier of a model that ranks"));
    assert!(of(Some(5)).unwrap_err().contains("llama.pooling_type is 5, expected 0 (none), 1 (mean)"));
}

#[test]
fn a_file_truncated_after_opening_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    llama().write(&path).unwrap();
    let file = Shared::new(GgufFile::open(&path).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = Weights::load(file).err().unwrap().to_string();
    assert!(error.contains("has 4096 now"), "{error}");
}

#[test]
fn numbers_of_a_file_may_have_any_type_that_holds_them() {
    let accepted = [
        ("tokenizer.ggml.scores", Value::from(vec![-7i32; 320])),
        ("tokenizer.ggml.scores", Value::Array(Array::U8(vec![1; 320]))),
        ("tokenizer.ggml.scores", Value::Array(Array::I64(vec![1 << 24; 320]))),
        ("tokenizer.ggml.token_type", Value::Array(Array::U8(vec![1; 320]))),
        ("llama.rope.freq_base", 10_000u32.into()),
        ("llama.attn_logit_softcapping", 50i64.into()),
    ];
    for (key, value) in accepted {
        load(&llama().kv(key, value)).unwrap_or_else(|error| panic!("{error}"));
    }
    let error = load(&llama().kv("llama.rope.freq_base", (1u32 << 24) + 1)).err().unwrap().to_string();
    assert!(error.contains("llama.rope.freq_base is 16777217, expected a positive number"), "{error}");
}

#[test]
fn real_vocabularies_open() {
    for name in fixtures::VOCABULARIES {
        let file = GgufFile::open(fixtures::vocabulary(name).path()).unwrap();
        vocab_check::check_file(&file).unwrap();
        let tokens = file.get_strs("tokenizer.ggml.tokens").unwrap().len();
        assert!(tokens >= 32_000 && file.tensors().is_empty() && file.vocab_size() == Some(tokens), "{name}: {tokens} tokens");
    }
}
