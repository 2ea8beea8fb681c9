//! Every rule for the files of LoRA adapters and control vectors, and every reason for a refusal.

use engine::ChangeKind;
use gguf::{Array, GgufBuilder, Value};
use model::QUANTS;
use model::testing::{Random, TinyModel, random_blocks};

use crate::AdapterKind;
use crate::targets::{Shape, Targets};
use crate::testing::{Bench, assert_close, delta, head, lora, product, tiny, values, with_pair};

const Q: (&str, [usize; 3], usize) = ("blk.1.attn_q.weight", [64, 64, 1], 4);

#[test]
fn a_pair_is_a_change_with_the_scale_alpha_over_rank() {
    let bench = Bench::new("llama");
    let opened = bench.open(&lora("llama", &[Q, ("blk.0.ffn_down.weight", [96, 64, 1], 2)]));
    assert_eq!((opened.kind, opened.rank, opened.invocation.len()), (AdapterKind::Lora, 4, 0));
    let changes = opened.adapter.changes;
    assert_eq!(changes.len(), 2);
    for (name, shape, rank) in [Q, ("blk.0.ffn_down.weight", [96, 64, 1], 2)] {
        let change = changes.iter().find(|change| change.tensor == name).unwrap();
        assert_eq!([change.cols, change.rows, change.count], shape);
        let ChangeKind::Low(low) = &change.kind else { panic!("replaced") };
        assert_eq!((low.rank, low.scale), (rank, 8.0 / rank as f32), "the rank is the tensor's own");
        assert_eq!(
            (&low.a, &low.b),
            (&values(&format!("{name}.lora_a"), shape[0] * rank), &values(&format!("{name}.lora_b"), shape[1] * rank))
        );
    }
}

#[test]
fn without_alpha_or_with_0_the_scale_is_1() {
    let bench = Bench::new("llama");
    let scale = |file: &GgufBuilder| match &bench.changes(file)[0].kind {
        ChangeKind::Low(low) => low.scale,
        ChangeKind::Replacement(_) => panic!("replaced"),
    };
    let mut file = lora("llama", &[Q]);
    file.set("adapter.lora.alpha", 0.0f32);
    assert_eq!(scale(&file), 1.0);
    file.remove("adapter.lora.alpha");
    assert_eq!(scale(&file), 1.0);
    file.set("adapter.lora.alpha", -6.0f64);
    assert_eq!(scale(&file), -1.5);
}

#[test]
fn halves_of_every_tensor_type_become_floats() {
    let (arch, hidden) = ("llama", 256);
    let model = TinyModel { vocab_size: 48, num_layers: 1, ..TinyModel::new(model::arch::Arch::by_name(arch).unwrap()) };
    let bench = Bench::of(&model.build());
    for quant in QUANTS {
        let mut random = Random(3);
        let (a, b) = (random_blocks(quant, hidden * 4, &mut random), values("b", hidden * 4));
        let file = head(arch).tensor("blk.0.attn_output.weight.lora_a", &[hidden as u64, 4], quant.id, a.clone());
        let change = bench.changes(&file.tensor_f32("blk.0.attn_output.weight.lora_b", &[4, hidden as u64], &b)).remove(0);
        let mut expected = vec![0.0; hidden * 4];
        (quant.dequantize)(&a, &mut expected);
        assert!(matches!(&change.kind, ChangeKind::Low(low) if low.a == expected && low.b == b), "{}", quant.name);
    }
    let file = head(arch).tensor("blk.0.attn_output.weight.lora_a", &[256, 4], 26, vec![0; 4096]);
    let error = bench.fault(&file.tensor_f32("blk.0.attn_output.weight.lora_b", &[4, 256], &[0.0; 1024]));
    assert!(error.contains("blk.0.attn_output.weight.lora_a is of type I32"), "{error}");
}

#[test]
fn a_rank_of_1_may_lack_its_dimension() {
    let bench = Bench::new("llama");
    let file = head("llama").tensor_f32("blk.0.attn_q.weight.lora_a", &[64], &values("a", 64));
    let change = bench.changes(&file.tensor_f32("blk.0.attn_q.weight.lora_b", &[1, 64], &values("b", 64))).remove(0);
    assert!(matches!(&change.kind, ChangeKind::Low(low) if low.rank == 1 && low.scale == 8.0));
}

#[test]
fn the_table_of_tokens_has_the_halves_turned_round() {
    let bench = Bench::new("llama");
    let (table, turn) = (values("table", 48 * 3), values("turn", 64 * 3));
    let file = head("llama").tensor_f32("token_embd.weight.lora_a", &[3, 48], &table);
    let changes = bench.changes(&file.tensor_f32("token_embd.weight.lora_b", &[3, 64], &turn));
    let [change] = &changes[..] else { panic!("the head is not changed too") };
    assert_eq!((change.tensor.as_str(), change.rows, change.cols), ("token_embd.weight", 48, 64));
    let row = |id: usize, i: usize| 8.0 / 3.0 * (0..3).map(|r| turn[i * 3 + r] * table[id * 3 + r]).sum::<f32>();
    let expected: Vec<f32> = (0..48 * 64).map(|at| row(at / 64, at % 64)).collect();
    assert_close(&delta(change), &expected);
}

#[test]
fn a_tied_head_is_changed_under_its_own_name() {
    let bench = Bench::new("llama");
    assert!(bench.weights.file.tensor("output.weight").is_none());
    let change = bench.changes(&lora("llama", &[("output.weight", [64, 48, 1], 2)])).remove(0);
    assert_eq!((change.tensor.as_str(), change.rows, change.cols), ("output.weight", 48, 64));
    let untied = Bench::of(&tiny("llama").build().tensor_f32("output.weight", &[64, 48], &values("head", 64 * 48)));
    assert_eq!(untied.changes(&lora("llama", &[("output.weight", [64, 48, 1], 2)]))[0].tensor, "output.weight");
}

#[test]
fn routers_and_experts_are_changed_as_stacks() {
    let bench = Bench::of(&TinyModel { experts: Some(TinyModel::experts(tiny("qwen2moe").arch)), ..tiny("qwen2moe") }.build());
    let stack = ("blk.1.ffn_up_exps.weight", [64, 256, 5], 2);
    let shared = ("blk.0.ffn_down_shexp.weight", [512, 64, 1], 2);
    let router = ("blk.0.ffn_gate_inp.weight", [64, 5, 1], 8);
    let share = ("blk.0.ffn_gate_inp_shexp.weight", [64, 1, 1], 1);
    let changes = bench.changes(&lora("qwen2moe", &[stack, shared, router, share]));
    for (name, shape, rank) in [stack, shared, router, share] {
        let change = changes.iter().find(|change| change.tensor == name).unwrap();
        assert_eq!([change.cols, change.rows, change.count], shape);
        assert_close(&delta(change), &product(name, shape, rank, 8.0 / rank as f32));
    }
}

#[test]
fn single_experts_become_a_stack_in_which_the_others_stay() {
    let model = TinyModel { experts: Some(TinyModel::experts(tiny("llama").arch)), ..tiny("llama") };
    let (second, fourth) = (("blk.0.ffn_up.1.weight", [64, 256, 1], 2), ("blk.0.ffn_up.3.weight", [64, 256, 1], 3));
    for file in [model.build(), TinyModel::with_split_experts(model.build())] {
        let change = Bench::of(&file).changes(&lora("llama", &[second, fourth])).remove(0);
        assert_eq!((change.tensor.as_str(), change.count, change.rows), ("blk.0.ffn_up_exps.weight", 5, 256));
        let matrices = delta(&change);
        for (i, matrix) in matrices.chunks_exact(64 * 256).enumerate() {
            match i {
                1 => assert_close(matrix, &product(second.0, second.1, 2, 4.0)),
                3 => assert_close(matrix, &product(fourth.0, fourth.1, 3, 8.0 / 3.0)),
                _ => assert!(matrix.iter().all(|x| *x == 0.0), "expert {i}"),
            }
        }
        let stack = ("blk.0.ffn_up_exps.weight", [64, 256, 5], 2);
        assert_close(&delta(&Bench::of(&file).changes(&lora("llama", &[stack]))[0]), &product(stack.0, stack.1, 2, 4.0));
    }
}

#[test]
fn parts_follow_a_model_that_holds_them_in_one_tensor() {
    let bench = Bench::new("phi3");
    let whole = ("blk.0.attn_qkv.weight", [64, 128, 1], 4);
    let change = bench.changes(&lora("phi3", &[whole])).remove(0);
    assert_eq!((change.tensor.as_str(), change.rows), (whole.0, 128));
    assert_close(&delta(&change), &product(whole.0, whole.1, 4, 2.0));
    let (q, v) = (("blk.0.attn_q.weight", [64, 64, 1], 4), ("blk.0.attn_v.weight", [64, 32, 1], 2));
    let (gate, up) = (("blk.1.ffn_gate.weight", [64, 96, 1], 2), ("blk.1.ffn_up.weight", [64, 96, 1], 2));
    let changes = bench.changes(&lora("phi3", &[q, v, gate, up]));
    let [qkv, ffn] = &changes[..] else { panic!("{} changes", changes.len()) };
    assert_eq!((qkv.tensor.as_str(), qkv.rows, ffn.tensor.as_str(), ffn.rows), ("blk.0.attn_qkv.weight", 128, "blk.1.ffn_up.weight", 192));
    let zeros = vec![0.0; 32 * 64];
    assert_close(&delta(qkv), &[product(q.0, q.1, 4, 2.0), zeros, product(v.0, v.1, 2, 4.0)].concat());
    assert_close(&delta(ffn), &[product(gate.0, gate.1, 2, 4.0), product(up.0, up.1, 2, 4.0)].concat());
    assert!(matches!(&ffn.kind, ChangeKind::Low(low) if low.rank == 4 && low.scale == 4.0), "the parts' ranks add up");
}

#[test]
fn a_whole_follows_a_model_that_holds_its_parts_apart() {
    let bench = Bench::new("qwen2");
    let (qkv, ffn) = (("blk.0.attn_qkv.weight", [64, 128, 1], 4), ("blk.1.ffn_up.weight", [64, 192, 1], 2));
    let changes = bench.changes(&lora("qwen2", &[qkv, ffn]));
    let joined = |names: &[&str]| -> Vec<f32> {
        names.iter().flat_map(|name| delta(changes.iter().find(|change| change.tensor == *name).unwrap())).collect()
    };
    assert_eq!(changes.len(), 5);
    let parts = joined(&["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"]);
    assert_close(&parts, &product(qkv.0, qkv.1, 4, 2.0));
    assert_close(&joined(&["blk.1.ffn_gate.weight", "blk.1.ffn_up.weight"]), &product(ffn.0, ffn.1, 2, 4.0));
}

#[test]
fn invocation_tokens_are_ids_of_the_vocabulary() {
    let bench = Bench::new("llama");
    let with = |ids: Array| lora("llama", &[Q]).kv("adapter.alora.invocation_tokens", ids);
    assert_eq!(bench.open(&with(Array::U32(vec![5, 47, 5]))).invocation, [5, 47, 5]);
    assert_eq!(bench.open(&with(Array::I32(vec![9]))).invocation, [9]);
    for (ids, fault) in [
        (Array::U32(vec![5, 48]), "adapter.alora.invocation_tokens has 48, expected tokens below 48"),
        (Array::I32(vec![-1]), "has -1, expected"),
        (Array::U32(vec![]), "is empty"),
        (Array::F32(vec![1.0]), "expected an array of integers"),
    ] {
        let error = bench.fault(&with(ids));
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn files_that_are_not_adapters_of_the_model_are_refused_by_the_key() {
    let bench = Bench::new("llama");
    let with = |key: &str, value: Value| lora("llama", &[Q]).kv(key, value);
    let without = |key: &str| {
        let mut file = lora("llama", &[Q]);
        file.remove(key);
        file
    };
    for (file, fault) in [
        (with("general.architecture", "qwen2".into()), "general.architecture is \"qwen2\", but the model's is \"llama\""),
        (without("general.architecture"), "general.architecture is missing, but the model's is \"llama\""),
        (with("general.architecture", 3u32.into()), "general.architecture is of type u32, expected string"),
        (with("general.type", "imatrix".into()), "general.type is \"imatrix\", expected \"adapter\""),
        (without("general.type"), "general.type is missing, expected \"adapter\""),
        (with("adapter.type", "ia3".into()), "adapter.type is \"ia3\", expected \"lora\""),
        (without("adapter.type"), "adapter.type is missing, expected \"lora\""),
        (with("adapter.lora.alpha", f32::NAN.into()), "adapter.lora.alpha is F32(NaN), expected a finite number"),
        (with("adapter.lora.alpha", "8".into()), "expected a finite number"),
        (tiny("llama").build(), "is a model, expected an adapter"),
        (head("llama"), "the adapter has no tensors"),
    ] {
        let error = bench.fault(&file);
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let bench = Bench::new("llama");
    let pair = |name: &str, shape: [usize; 3], rank: usize| with_pair(lora("llama", &[Q]), name, shape, rank);
    let halves = |a: [u64; 2], b: [u64; 2]| {
        let of = |dims: [u64; 2]| values("half", (dims[0] * dims[1]) as usize);
        head("llama").tensor_f32("blk.0.attn_k.weight.lora_a", &a, &of(a)).tensor_f32("blk.0.attn_k.weight.lora_b", &b, &of(b))
    };
    let only = |half: &str| {
        let mut file = lora("llama", &[Q]);
        file.tensors.retain(|tensor| tensor.name.ends_with(half));
        file
    };
    for (file, fault) in [
        (pair("blk.0.attn_x.weight", [64, 64, 1], 2), "the model has no tensor blk.0.attn_x.weight"),
        (pair("blk.2.attn_q.weight", [64, 64, 1], 2), "the model has no tensor blk.2.attn_q.weight"),
        (pair("blk.0.attn_q", [64, 64, 1], 2), "the model has no tensor blk.0.attn_q"),
        (pair("blk.0.attn_norm.weight", [64, 1, 1], 1), "blk.0.attn_norm.weight is a norm"),
        (pair("output_norm.weight", [64, 1, 1], 1), "output_norm.weight is a norm"),
        (only("lora_a"), "tensor blk.1.attn_q.weight.lora_a has no .lora_b beside it"),
        (only("lora_b"), "tensor blk.1.attn_q.weight.lora_b has no .lora_a beside it"),
        (pair("blk.0.attn_k.weight", [64, 64, 1], 2), "the adapter changes 64 rows of 64 columns, but the model has 32 rows of 64 columns"),
        (pair("blk.0.attn_k.weight", [32, 32, 1], 2), "blk.0.attn_k.weight: the adapter changes 32 rows of 32 columns"),
        (pair("blk.0.attn_k.weight", [64, 32, 2], 2), "the adapter changes 2 matrices of 32 rows and 64 columns"),
        (
            halves([64, 4], [3, 32]),
            "blk.0.attn_k.weight: lora_a has shape [64, 4] and lora_b [3, 32] (innermost first), so their ranks differ",
        ),
        (halves([4, 64], [4, 32]), "their ranks differ"),
        (halves([64, 65], [65, 32]), "blk.0.attn_k.weight: the rank 65 is larger than the matrix"),
        (head("llama").tensor_f32("blk.0.attn_q.weight", &[64, 64], &[0.0; 4096]), "blk.0.attn_q.weight is not part of a LoRA adapter"),
        (pair("rope_freqs.weight", [8, 1, 1], 1), "the model has no tensor rope_freqs.weight"),
        (pair("token_embd.weight", [64, 48, 1], 2), "token_embd.weight: lora_a has shape [64, 2] and lora_b [2, 48]"),
    ] {
        let error = bench.fault(&file);
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn biases_and_vectors_are_refused_by_name() {
    let bench = Bench::new("qwen2");
    for (name, fault) in [("blk.0.attn_q.bias", "is no matrix that the model multiplies with"), ("blk.1.ffn_norm.weight", "is a norm")] {
        let error = bench.fault(&lora("qwen2", &[(name, [64, 1, 1], 1)]));
        assert!(error.contains(&format!("{name} {fault}")), "{error}");
    }
    let gpt2 = Bench::of(&TinyModel { num_kv_heads: 4, ..tiny("gpt2") }.build());
    let error = gpt2.fault(&lora("gpt2", &[("position_embd.weight", [64, 512, 1], 1)]));
    assert!(error.contains("position_embd.weight is a table that adapters cannot change"), "{error}");
}

#[test]
fn numbers_that_are_not_finite_are_refused_with_their_place() {
    let bench = Bench::new("llama");
    for (half, bad) in [("lora_a", f32::NAN), ("lora_b", f32::INFINITY), ("lora_b", f32::NEG_INFINITY)] {
        let mut file = lora("llama", &[Q]);
        let tensor = file.tensors.iter_mut().find(|tensor| tensor.name.ends_with(half)).unwrap();
        tensor.bytes[28..32].copy_from_slice(&bad.to_le_bytes());
        let error = bench.fault(&file);
        assert!(error.contains(&format!("tensor blk.1.attn_q.weight.{half} holds {bad} at index 7, expected finite numbers")), "{error}");
    }
    let bench = Bench::new("phi3");
    let mut file = lora("phi3", &[("blk.0.attn_q.weight", [64, 64, 1], 4), ("blk.0.attn_k.weight", [64, 32, 1], 1)]);
    file.set("adapter.lora.alpha", 3e38f32);
    file.tensors[3].bytes[..4].copy_from_slice(&4f32.to_le_bytes());
    let error = bench.fault(&file);
    assert!(error.contains("blk.0.attn_qkv.weight: the scale and the weights are too large for float32"), "{error}");
}

#[test]
fn the_same_rows_are_not_changed_twice() {
    let bench = Bench::new("phi3");
    let both = [("blk.0.attn_qkv.weight", [64, 128, 1], 4), ("blk.0.attn_k.weight", [64, 32, 1], 2)];
    let error = bench.fault(&lora("phi3", &both));
    assert!(error.contains("change the same rows of blk.0.attn_qkv.weight"), "{error}");
    let twice = with_pair(lora("phi3", &both[..1]), both[0].0, both[0].1, both[0].2);
    let error = bench.fault(&twice);
    assert!(error.contains("\"blk.0.attn_qkv.weight.lora_a\" occurs twice"), "{error}");
}

#[test]
fn other_formats_are_refused_with_what_to_do() {
    let bench = Bench::new("llama");
    for (name, fault) in [
        ("adapter_model.bin", "is a pickle, which runs code when it is read: save the adapter as safetensors"),
        ("adapter_model.safetensors", "is a part of PEFT's folder: give the folder"),
        ("adapter_config.json", "give the folder"),
        ("missing.gguf", "cannot open"),
    ] {
        let error = crate::open(&bench.dir.path().join(name), &bench.weights).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(fault), "{error}");
    }
}

fn vector(layers: &[usize]) -> GgufBuilder {
    let file = GgufBuilder::new()
        .kv("general.architecture", "controlvector")
        .kv("controlvector.model_hint", "llama")
        .kv("controlvector.layer_count", layers.len() as i32);
    layers.iter().fold(file, |file, layer| {
        let name = format!("direction.{layer}");
        let numbers = values(&name, 64);
        file.tensor_f32(&name, &[64], &numbers)
    })
}

#[test]
fn a_control_vector_has_directions_behind_layers() {
    let bench = Bench::of(&TinyModel { num_layers: 4, ..tiny("llama") }.build());
    let opened = bench.open(&vector(&[3, 1, 2]));
    assert_eq!((opened.kind, opened.rank, opened.adapter.changes.len()), (AdapterKind::ControlVector, 0, 0));
    let layers = |adapter: &engine::Adapter| adapter.directions.iter().map(|direction| direction.layer).collect::<Vec<_>>();
    assert_eq!(layers(&opened.adapter), [1, 2, 3]);
    assert_eq!(opened.adapter.directions[0].vector, values("direction.1", 64));
    assert_eq!(layers(&opened.within(&(2..=2)).adapter), [2]);
}

#[test]
fn control_vectors_that_do_not_fit_are_refused_by_name() {
    let bench = Bench::of(&TinyModel { num_layers: 4, ..tiny("llama") }.build());
    for hint in ["mistral", "llama"] {
        assert_eq!(bench.open(&vector(&[1]).kv("controlvector.model_hint", hint)).adapter.directions.len(), 1);
    }
    let wide = vector(&[1]).tensor_f32("direction.2", &[65], &values("wide", 65)).kv("controlvector.layer_count", 2i32);
    let named = |name: &str| vector(&[1]).tensor_f32(name, &[64], &values("x", 64)).kv("controlvector.layer_count", 2i32);
    let infinite = vector(&[1]).tensor_f32("direction.2", &[64], &[f32::INFINITY; 64]);
    for (file, fault) in [
        (vector(&[1]).kv("controlvector.model_hint", "qwen2"), "controlvector.model_hint is \"qwen2\""),
        (vector(&[1]).kv("controlvector.layer_count", 2i32), "but the file has 1 directions"),
        (vector(&[]), "has no direction"),
        (vector(&[0]), "tensor direction.0: the model has directions behind layers 1 to 3"),
        (vector(&[4]), "tensor direction.4: the model has directions behind layers 1 to 3"),
        (wide, "tensor direction.2 has shape [65], expected [64]"),
        (named("direction.02"), "tensor \"direction.02\" is not part of a control vector"),
        (named("blk.0.attn_q.weight"), "is not part of a control vector"),
        (infinite, "tensor direction.2 holds inf at index 0"),
    ] {
        let error = bench.fault(&file);
        assert!(error.contains(fault), "{error}");
    }
}

/// Tensors of two and more dimensions that adapters cannot change, and why.
const NOT_CHANGED: &[(&str, &str)] = &[
    ("attn_k_b.weight", "is a half of latent attention's combined matrix"),
    ("attn_v_b.weight", "is a half of latent attention's combined matrix"),
    ("altup_correct_coef.weight", "is no matrix that the model multiplies with"),
    ("altup_predict_coef.weight", "is no matrix that the model multiplies with"),
    ("conv1d.weight", "is a convolution"),
    ("conv.weight", "is a convolution"),
    ("ssm_norm.weight", "is a norm"),
    ("ssm_a", "is no matrix that the model multiplies with"),
    ("ssm_d", "is no matrix that the model multiplies with"),
    ("_exps.bias", "is no matrix that the model multiplies with"),
    ("token_embd.weight", "is a table that adapters cannot change"),
];

#[test]
fn the_matrices_of_each_architecture_are_changed_or_refused_by_name() {
    let (_, all) = fixtures::architectures::architectures();
    let names = ["deepseek2-moe", "gemma3n-dense", "gpt-oss-moe", "falcon-h1-dense", "lfm2-dense", "qwen3next-moe", "mamba-dense"];
    let mut seen = 0;
    for architecture in all.iter().filter(|architecture| names.contains(&architecture.name.as_str())) {
        let bench = Bench::of(&architecture.build());
        let targets = Targets::of(&bench.weights);
        for tensor in bench.weights.file.tensors().iter().filter(|tensor| tensor.dims.len() > 1) {
            let dim = |i: usize| tensor.dims.get(i).map_or(1, |&dim| dim as usize);
            let shape = Shape { cols: dim(0), rows: dim(1), count: dim(2) };
            match targets.place(&tensor.name, shape) {
                Ok([only]) => assert_eq!((&targets.all[only.target].name, targets.all[only.target].shape), (&tensor.name, shape)),
                Ok(many) => assert!(many.is_empty(), "{} is held as one", tensor.name),
                Err(error) => {
                    let why = NOT_CHANGED.iter().find(|(end, _)| tensor.name.ends_with(end)).unwrap_or_else(|| panic!("{error}"));
                    assert!(error.contains(&format!("{} {}", tensor.name, why.1)), "{}: {error}", architecture.name);
                }
            }
            seen += 1;
        }
    }
    assert!(seen > 300, "{seen} matrices");
}

#[test]
fn matrices_that_the_model_does_not_use_change_nothing_and_are_named() {
    let extra = |name: &str| tiny("llama").build().tensor_f32(name, &[64, 32], &values(name, 64 * 32));
    let idle = ("blk.2.nextn.eh_proj.weight", [64, 32, 1], 2);
    let bench = Bench::of(&extra(idle.0));
    let opened = bench.open(&lora("llama", &[Q, idle]));
    assert_eq!((opened.adapter.changes.len(), &opened.unused[..]), (1, &[idle.0.to_owned()][..]));
    let error = bench.fault(&lora("llama", &[Q, (idle.0, [32, 32, 1], 2)]));
    assert!(
        error.contains("blk.2.nextn.eh_proj.weight: the adapter changes 32 rows of 32 columns, but the model has 32 rows of 64"),
        "{error}"
    );
    let error = bench.fault(&lora("llama", &[idle]));
    assert!(error.contains("the adapter changes no matrix that the model uses"), "{error}");
}
