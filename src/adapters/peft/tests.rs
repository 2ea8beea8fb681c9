//! Every rule for PEFT's folders, and every reason for a refusal.

use engine::ChangeKind;
use model::TensorRole;
use model::testing::TinyModel;
use serde_json::json;

use crate::AdapterKind;
use crate::testing::{Bench, PeftFolder, assert_close, change_of, delta, multiplied, tiny, values};

const Q: &str = "model.layers.0.self_attn.q_proj";
const V: &str = "model.layers.1.self_attn.v_proj";

/// scale · B A of a module.
fn product(folder: &PeftFolder, module: &str, [rows, cols]: [usize; 2], rank: usize, scale: f32) -> Vec<f32> {
    let (a, b) = (folder.numbers(&format!("{module}.lora_A.weight")), folder.numbers(&format!("{module}.lora_B.weight")));
    multiplied([1, rows, rank, cols], a, b, scale)
}

/// Rows of heads from halves to neighbours, as files of `llama` hold them.
fn paired(rows: &[f32], cols: usize, dim: usize) -> Vec<f32> {
    let source = |row: usize| row / dim * dim + row % 2 * (dim / 2) + row % dim / 2;
    (0..rows.len() / cols).flat_map(|row| &rows[source(row) * cols..][..cols]).copied().collect()
}

fn scale_of(kind: &ChangeKind) -> f32 {
    match kind {
        ChangeKind::Low(low) => low.scale,
        ChangeKind::Replacement(_) => panic!("replaced"),
    }
}

#[test]
fn queries_and_keys_of_llama_have_their_rows_in_another_order() {
    let folder = PeftFolder::new().pair(Q, [64, 64], 4).pair(V, [32, 64], 4);
    let bench = Bench::new("llama");
    let opened = folder.open(&bench);
    assert_eq!((opened.kind, opened.rank, opened.adapter.changes.len()), (AdapterKind::Lora, 4, 2));
    let q = product(&folder, Q, [64, 64], 4, 2.0);
    assert_close(&delta(change_of(&opened, "blk.0.attn_q.weight")), &paired(&q, 64, 16));
    assert_close(&delta(change_of(&opened, "blk.1.attn_v.weight")), &product(&folder, V, [32, 64], 4, 2.0));
    let qwen = Bench::new("qwen3");
    assert_close(&delta(change_of(&folder.open(&qwen), "blk.0.attn_q.weight")), &q);
}

#[test]
fn scales_and_ranks_follow_the_configuration() {
    let bench = Bench::new("qwen3");
    let down = "model.layers.1.mlp.down_proj";
    let folder = PeftFolder::new()
        .set("rank_pattern", json!({"q_proj": 9, "layers.1.mlp.down_proj": 2}))
        .set("alpha_pattern", json!({"v_proj": 16}))
        .pair(Q, [64, 64], 9)
        .pair(V, [32, 64], 4)
        .pair(down, [64, 96], 2);
    let scales = |folder: PeftFolder| {
        let opened = folder.open(&bench);
        ["blk.0.attn_q.weight", "blk.1.attn_v.weight", "blk.1.ffn_down.weight"].map(|name| scale_of(&change_of(&opened, name).kind))
    };
    let stabilised = PeftFolder { config: folder.config.clone(), tensors: folder.tensors.clone() }.set("use_rslora", true);
    assert_eq!(scales(folder), [8.0 / 9.0, 4.0, 4.0]);
    assert_eq!(scales(stabilised), [8.0 / 3.0, 8.0, 8.0 / 2f32.sqrt()]);
}

#[test]
fn embeddings_and_the_head_are_changed_each_alone() {
    let bench = Bench::new("llama");
    let table = "model.embed_tokens";
    let folder = PeftFolder::new()
        .tensor(&format!("{table}.lora_embedding_A"), &[4, 48])
        .tensor(&format!("{table}.lora_embedding_B"), &[64, 4])
        .pair("lm_head", [48, 64], 4);
    let opened = folder.open(&bench);
    let (a, b) = (folder.numbers("model.embed_tokens.lora_embedding_A"), folder.numbers("model.embed_tokens.lora_embedding_B"));
    let row = |id: usize, i: usize| 2.0 * (0..4).map(|r| b[i * 4 + r] * a[r * 48 + id]).sum::<f32>();
    let expected: Vec<f32> = (0..48 * 64).map(|at| row(at / 64, at % 64)).collect();
    assert_close(&delta(change_of(&opened, "token_embd.weight")), &expected);
    assert_close(&delta(change_of(&opened, "output.weight")), &product(&folder, "lm_head", [48, 64], 4, 2.0));
}

#[test]
fn saved_modules_replace_the_models_weights() {
    let bench = Bench::new("llama");
    let folder = PeftFolder::new()
        .set("modules_to_save", json!(["lm_head", "embed_tokens", "k_proj"]))
        .pair(V, [32, 64], 4)
        .tensor("lm_head.weight", &[48, 64])
        .tensor("model.embed_tokens.weight", &[48, 64])
        .tensor("model.layers.0.self_attn.k_proj.weight", &[32, 64]);
    let opened = folder.open(&bench);
    let replaced = |tensor: &str| match &change_of(&opened, tensor).kind {
        ChangeKind::Replacement(all) => all.clone(),
        ChangeKind::Low(_) => panic!("{tensor} is not replaced"),
    };
    assert_eq!(replaced("output.weight"), folder.numbers("lm_head.weight"));
    assert_eq!(replaced("token_embd.weight"), folder.numbers("model.embed_tokens.weight"));
    let keys = folder.numbers("model.layers.0.self_attn.k_proj.weight");
    assert_eq!(replaced("blk.0.attn_k.weight"), paired(keys, 64, 16));
    let gpt2 = Bench::of(&TinyModel { num_kv_heads: 4, ..tiny("gpt2") }.build());
    let folder = PeftFolder::new().tensor("transformer.h.0.mlp.c_fc.weight", &[64, 96]);
    let (opened, stored) = (folder.open(&gpt2), folder.numbers("transformer.h.0.mlp.c_fc.weight"));
    let turned: Vec<f32> = (0..96 * 64).map(|at| stored[at % 64 * 96 + at / 64]).collect();
    assert!(matches!(&change_of(&opened, "blk.0.ffn_up.weight").kind, ChangeKind::Replacement(all) if *all == turned));
}

#[test]
fn pairs_of_experts_become_a_stack() {
    let bench = Bench::of(&TinyModel { experts: Some(TinyModel::experts(tiny("qwen3moe").arch)), ..tiny("qwen3moe") }.build());
    let expert = |n: usize| format!("model.layers.1.mlp.experts.{n}.up_proj");
    let folder = PeftFolder::new()
        .set("rank_pattern", json!({"experts.3.up_proj": 2}))
        .pair(&expert(0), [256, 64], 4)
        .pair(&expert(3), [256, 64], 2)
        .pair("model.layers.1.mlp.gate", [5, 64], 4);
    let opened = folder.open(&bench);
    let stack = change_of(&opened, "blk.1.ffn_up_exps.weight");
    assert_eq!((stack.count, stack.rows, stack.cols), (5, 256, 64));
    for (n, matrix) in delta(stack).chunks_exact(256 * 64).enumerate() {
        match n {
            0 => assert_close(matrix, &product(&folder, &expert(0), [256, 64], 4, 2.0)),
            3 => assert_close(matrix, &product(&folder, &expert(3), [256, 64], 2, 4.0)),
            _ => assert!(matrix.iter().all(|x| *x == 0.0), "expert {n}"),
        }
    }
    assert_eq!(change_of(&opened, "blk.1.ffn_gate_inp.weight").rows, 5);
    let error = PeftFolder::new().pair(&expert(5), [256, 64], 4).fault(&bench);
    assert!(error.contains("the model has no tensor blk.1.ffn_up.5.weight: the adapter was made for org/base"), "{error}");
}

/// magnitude · (W + scale · B A) / ‖row‖ of a tensor with these weights.
fn dora(
    folder: &PeftFolder,
    module: &str,
    base: &[f32],
    [rows, cols]: [usize; 2],
    order: impl Fn(Vec<f32>, usize) -> Vec<f32>,
) -> Vec<f32> {
    let magnitude = order(folder.numbers(&format!("{module}.lora_magnitude_vector")).to_vec(), 1);
    let change = order(product(folder, module, [rows, cols], 4, 2.0), cols);
    let sum: Vec<f32> = base.iter().zip(change).map(|(w, d)| w + d).collect();
    let scaled = |(row, m): (&[f32], &f32)| {
        let norm = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
        row.iter().map(|x| m * x / norm).collect::<Vec<f32>>()
    };
    sum.chunks_exact(cols).zip(&magnitude).flat_map(scaled).collect()
}

#[test]
fn dora_scales_rows_to_their_magnitude() {
    for (arch, module, tensor, role) in [
        ("llama", "model.layers.0.self_attn.q_proj", "blk.0.attn_q.weight", TensorRole::AttnQ),
        ("qwen3", "model.layers.0.self_attn.q_proj", "blk.0.attn_q.weight", TensorRole::AttnQ),
        ("qwen3", "lm_head", "output.weight", TensorRole::Output),
    ] {
        let bench = Bench::new(arch);
        let rows = if role == TensorRole::Output { 48 } else { 64 };
        let folder =
            PeftFolder::new().set("use_dora", true).pair(module, [rows, 64], 4).tensor(&format!("{module}.lora_magnitude_vector"), &[rows]);
        let opened = folder.open(&bench);
        assert_eq!(opened.kind, AdapterKind::Dora);
        let base = bench.weights.vector(role, 0).unwrap();
        let order = |all: Vec<f32>, cols: usize| if arch == "llama" { paired(&all, cols, 16) } else { all };
        let expected = dora(&folder, module, &base, [rows, 64], order);
        let change = change_of(&opened, tensor);
        let ChangeKind::Low(low) = &change.kind else { panic!("replaced") };
        let sum: Vec<f32> = base.iter().zip(delta(change)).map(|(w, d)| w + d).collect();
        let gain = low.gain.as_ref().unwrap();
        let found: Vec<f32> = sum.chunks_exact(64).zip(gain).flat_map(|(row, gain)| row.iter().map(move |x| gain * x)).collect();
        assert_close(&found, &expected);
    }
}

#[test]
fn dora_of_a_part_leaves_the_other_rows_alone() {
    let bench = Bench::of(&TinyModel { experts: Some(TinyModel::experts(tiny("qwen3moe").arch)), ..tiny("qwen3moe") }.build());
    let module = "model.layers.0.mlp.experts.2.gate_proj";
    let folder = PeftFolder::new()
        .set("use_dora", true)
        .pair(module, [256, 64], 4)
        .tensor(&format!("{module}.lora_magnitude_vector.weight"), &[256]);
    let opened = folder.open(&bench);
    let ChangeKind::Low(low) = &change_of(&opened, "blk.0.ffn_gate_exps.weight").kind else { panic!("replaced") };
    let gain = low.gain.as_ref().unwrap();
    let own = 2 * 256..3 * 256;
    assert!(gain.iter().enumerate().all(|(i, gain)| own.contains(&i) != (*gain == 1.0)));
    let base = bench.weights.vector(TensorRole::FfnGateExps, 0).unwrap();
    let row: Vec<f32> = base[2 * 256 * 64..][..64].iter().zip(product(&folder, module, [256, 64], 4, 2.0)).map(|(w, d)| w + d).collect();
    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    let magnitude = folder.numbers(&format!("{module}.lora_magnitude_vector.weight"))[0];
    assert!((gain[512] - magnitude / norm).abs() < 1e-5);
}

#[test]
fn a_fused_module_changes_the_fused_tensor() {
    let bench = Bench::new("phi3");
    let folder =
        PeftFolder::new().pair("model.layers.0.self_attn.qkv_proj", [128, 64], 4).pair("model.layers.0.mlp.gate_up_proj", [192, 64], 4);
    let opened = folder.open(&bench);
    let expected = product(&folder, "model.layers.0.self_attn.qkv_proj", [128, 64], 4, 2.0);
    assert_close(&delta(change_of(&opened, "blk.0.attn_qkv.weight")), &expected);
    assert_eq!(change_of(&opened, "blk.0.ffn_up.weight").rows, 192);
}

#[test]
fn an_activated_adapter_has_its_tokens() {
    let bench = Bench::new("llama");
    let folder = |ids: serde_json::Value| PeftFolder::new().set("alora_invocation_tokens", ids).pair(V, [32, 64], 4);
    assert_eq!(folder(json!([7, 3])).open(&bench).invocation, [7, 3]);
    assert!(folder(json!(null)).open(&bench).invocation.is_empty());
    for (ids, fault) in
        [(json!([48]), "alora_invocation_tokens has 48"), (json!([]), "is empty"), (json!("x"), "expected a list of token ids")]
    {
        let error = folder(ids).fault(&bench);
        assert!(error.contains("adapter_config.json: ") && error.contains(fault), "{error}");
    }
}

#[test]
fn frozen_weights_of_the_model_beside_an_adapter_are_checked() {
    let bench = Bench::new("llama");
    let with = |change: &dyn Fn(&mut Vec<f32>)| {
        let mut folder = PeftFolder::new()
            .tensor("model.embed_tokens.lora_embedding_A", &[4, 48])
            .tensor("model.embed_tokens.lora_embedding_B", &[64, 4])
            .tensor("model.embed_tokens.base_layer.weight", &[48, 64]);
        let mut own = bench.weights.vector(TensorRole::TokenEmbd, 0).unwrap();
        change(&mut own);
        folder.tensors[2].2 = own;
        folder
    };
    let rounded = with(&|own| own.iter_mut().for_each(|x| *x *= 1.04));
    assert_eq!(rounded.open(&bench).adapter.changes.len(), 1);
    let error = with(&|own| *own = values("other", own.len())).fault(&bench);
    assert!(error.contains("model.embed_tokens: base_layer.weight differs from the model's weights by"), "{error}");
}

#[test]
fn settings_that_cannot_be_followed_are_refused_by_name() {
    let bench = Bench::new("llama");
    for (key, value, fault) in [
        ("peft_type", json!("IA3"), "peft_type is \"IA3\", expected \"LORA\""),
        ("peft_type", json!(null), "peft_type is missing"),
        ("r", json!(0), "r is 0, expected an integer from 1"),
        ("r", json!("4"), "r is \"4\", expected an integer"),
        ("lora_alpha", json!(null), "lora_alpha is missing, expected a number"),
        ("lora_alpha", json!(1e60), "lora_alpha is 1e60, which float32 cannot hold"),
        ("bias", json!("all"), "bias is \"all\", expected \"none\""),
        ("lora_bias", json!(true), "lora_bias is set (biases of the adapter)"),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"]), "target_parameters is set (parameters outside of modules)"),
        ("trainable_token_indices", json!([1, 2]), "trainable_token_indices is set (single rows of a table)"),
        ("layer_replication", json!([[0, 1]]), "layer_replication is set"),
        ("use_qalora", json!(true), "use_qalora is set, a variant of LoRA that cannot be used"),
        ("init_lora_weights", json!("pissa"), "init_lora_weights is \"pissa\", expected true"),
        ("rank_pattern", json!({"q_proj": -1}), "rank_pattern has a value for q_proj that is no positive number"),
        ("alpha_pattern", json!([]), "alpha_pattern is a list of 0 entries, expected an object"),
        ("alpha_pattern", json!({"(": 1}), "alpha_pattern: the pattern ( cannot be used"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save has lm_head, but the file of tensors has no weights of it"),
        ("modules_to_save", json!("lm_head"), "expected a list of names"),
        ("use_dora", json!(true), "has no lora_magnitude_vector, although use_dora is true"),
        ("use_dora", json!("yes"), "use_dora is \"yes\", expected true or false"),
    ] {
        let error = PeftFolder::new().pair(V, [32, 64], 4).set(key, value).fault(&bench);
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn tensors_that_cannot_be_used_are_refused_by_name() {
    let bench = Bench::new("llama");
    let pair = |module: &str, shape: [usize; 2], rank: usize| PeftFolder::new().pair(module, shape, rank);
    let with = |name: &str, shape: &[usize]| pair(V, [32, 64], 4).tensor(name, shape);
    let b =
        |rank: usize| PeftFolder::new().tensor(&format!("{V}.lora_A.weight"), &[4, 64]).tensor(&format!("{V}.lora_B.weight"), &[32, rank]);
    let foreign = "the adapter was made for org/base, and the model is tiny llama (llama)";
    let mut outside = pair(V, [32, 64], 4);
    outside.tensors[0].0 = "model.layers.0.q_proj.lora_A.weight".into();
    let mut endless = pair(V, [32, 64], 4);
    endless.tensors[1].2[3] = f32::INFINITY;
    for (folder, fault) in [
        (pair("model.layers.0.self_attn.qkv_proj", [128, 64], 4), "takes the module model.layers.0.self_attn.qkv_proj"),
        (pair("model.layers.0.self_attn.qkv_proj", [128, 64], 4), foreign),
        (pair("model.layers.2.self_attn.v_proj", [32, 64], 4), "the model has no tensor blk.2.attn_v.weight"),
        (pair(V, [64, 64], 4), "blk.1.attn_v.weight: the adapter changes 64 rows of 64 columns, but the model has 32 rows of 64 columns"),
        (pair(V, [64, 64], 4), foreign),
        (pair(Q, [40, 64], 4), "model.layers.0.self_attn.q_proj has 40 rows, which do not fit the model's heads"),
        (pair(V, [32, 64], 2), "model.layers.1.self_attn.v_proj has the rank 2, but adapter_config.json says 4"),
        (pair(V, [32, 64], 65), "the rank 65 is larger than the matrix"),
        (b(5), "lora_A is [4, 64] and lora_B [32, 5], so their ranks differ"),
        (PeftFolder::new().tensor(&format!("{V}.lora_A.weight"), &[4, 64]), "model.layers.1.self_attn.v_proj has lora_A, but no lora_B"),
        (with("model.norm.weight", &[64]), "output_norm.weight is a norm"),
        (with("score.weight", &[2, 64]), "takes the module score"),
        (with(&format!("{V}.lora_B.bias"), &[32]), "lora_B.bias is a bias, which adapters cannot change"),
        (with("model.embed_tokens.token_adapter.trainable_tokens_delta", &[2, 64]), "holds single rows of a table"),
        (with(&format!("{V}.lora_magnitude_vector"), &[32]), "has a lora_magnitude_vector, although use_dora is false"),
        (with(&format!("{V}.weight"), &[32, 64]), "has both saved weights and an adapter"),
        (with("model.layers.0.mlp.up_proj.lora_A.weight", &[4, 64, 1]), "has lora_A, but no lora_B"),
        (with("lm_head.weight", &[50, 64]), "output.weight: the adapter changes 50 rows of 64 columns, but the model has 48 rows"),
        (with("layers.1.self_attn.v_proj.lora_A.weight", &[4, 64]), "has lora_A, but no lora_B"),
        (pair(V, [32, 64], 4).pair("layers.1.self_attn.v_proj", [32, 64], 4), "change the same rows of blk.1.attn_v.weight"),
        (outside, "tensor model.layers.0.q_proj.lora_A.weight does not begin with base_model.model."),
        (endless, "v_proj.lora_B.weight holds inf at index 3"),
        (PeftFolder::new(), "the adapter has no tensors"),
    ] {
        let error = folder.fault(&bench);
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn dora_of_embeddings_and_of_rows_without_length_is_refused() {
    let bench = Bench::new("llama");
    let table = PeftFolder::new()
        .set("use_dora", true)
        .tensor("model.embed_tokens.lora_embedding_A", &[4, 48])
        .tensor("model.embed_tokens.lora_embedding_B", &[64, 4])
        .tensor("model.embed_tokens.lora_magnitude_vector", &[64]);
    assert!(table.fault(&bench).contains("DoRA of embeddings scales columns"));
    let mut model = tiny("llama").build();
    let tensor = model.tensors.iter_mut().find(|tensor| tensor.name == "blk.1.attn_v.weight").unwrap();
    tensor.bytes[5 * 64 * 4..6 * 64 * 4].fill(0);
    let mut folder = PeftFolder::new().set("use_dora", true).pair(V, [32, 64], 4).tensor(&format!("{V}.lora_magnitude_vector"), &[32]);
    folder.tensors[1].2[5 * 4..6 * 4].fill(0.0);
    let error = folder.fault(&Bench::of(&model));
    assert!(error.contains("model.layers.1.self_attn.v_proj: row 5 of W + scale · B A has the length 0"), "{error}");
}

#[test]
fn folders_without_their_files_are_refused_with_what_to_do() {
    let bench = Bench::new("llama");
    let path = PeftFolder::new().pair(V, [32, 64], 4).write(bench.dir.path());
    let fault = || crate::open(&path, &bench.weights).map(|_| ()).unwrap_err().to_string();
    std::fs::rename(path.join("adapter_model.safetensors"), path.join("adapter_model.bin")).unwrap();
    assert!(fault().contains("a pickle, which runs code when it is read: save the adapter as safetensors"));
    std::fs::remove_file(path.join("adapter_model.bin")).unwrap();
    assert!(fault().contains("has no adapter_model.safetensors"));
    std::fs::write(path.join("adapter_config.json"), "[]").unwrap();
    assert!(fault().contains("adapter_config.json: is not a JSON object"));
    std::fs::remove_file(path.join("adapter_config.json")).unwrap();
    assert!(fault().contains("has no adapter_config.json: expected PEFT's folder, or a GGUF file"));
}

#[test]
fn families_without_a_table_of_modules_are_refused() {
    let (_, all) = fixtures::architectures::architectures();
    let bench = Bench::of(&all.iter().find(|architecture| architecture.name == "lfm2-dense").unwrap().build());
    let error = PeftFolder::new().pair(V, [32, 64], 4).fault(&bench);
    assert!(error.contains("modules of lfm2 are not known: convert the adapter to GGUF first"), "{error}");
}
