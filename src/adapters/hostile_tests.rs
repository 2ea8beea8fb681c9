//! Valid files with some bytes changed, cut or moved: each is read as a whole adapter or refused, and none makes the reader panic.

use std::path::Path;

use engine::ChangeKind;
use proptest::prelude::*;
use serde_json::json;

use crate::testing::{Bench, PeftFolder, lora, values};
use crate::{OpenAdapter, open};

/// Changes of a file: where (relative to its length), and the byte that stands there then.
type Edits = Vec<(prop::sample::Index, u8)>;

fn edits() -> impl Strategy<Value = (Edits, Option<prop::sample::Index>)> {
    (prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), prop::option::weighted(0.2, any::<prop::sample::Index>()))
}

/// Applies the edits to the first `head` bytes, and cuts the file.
fn edited(mut bytes: Vec<u8>, head: usize, (edits, cut): &(Edits, Option<prop::sample::Index>)) -> Vec<u8> {
    for (at, byte) in edits {
        let at = at.index(head);
        bytes[at] = *byte;
    }
    if let Some(cut) = cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    bytes
}

/// Checks the promises about an open adapter.
fn check(opened: &OpenAdapter, bench: &Bench) {
    for change in &opened.adapter.changes {
        let tensor = bench.weights.file.tensor(&change.tensor);
        assert!(tensor.is_some() || change.tensor == "output.weight", "{} is no tensor of the model", change.tensor);
        match &change.kind {
            ChangeKind::Low(low) => {
                assert_eq!(low.a.len(), change.count * low.rank * change.cols);
                assert_eq!(low.b.len(), change.count * change.rows * low.rank);
                assert!(low.gain.as_ref().is_none_or(|gain| gain.len() == change.count * change.rows));
                assert!(low.scale.is_finite() && low.a.iter().chain(&low.b).chain(low.gain.iter().flatten()).all(|x| x.is_finite()));
            }
            ChangeKind::Replacement(all) => {
                assert!(all.len() == change.count * change.rows * change.cols && all.iter().all(|x| x.is_finite()))
            }
        }
    }
    for direction in &opened.adapter.directions {
        assert!(direction.vector.len() == bench.weights.spec.hidden_dim && direction.vector.iter().all(|x| x.is_finite()));
    }
}

fn try_open(path: &Path, bench: &Bench) {
    match open(path, &bench.weights) {
        Ok(opened) => check(&opened, bench),
        Err(error) => assert!(!error.fault.is_empty() && error.fault.len() < 2000, "{error}"),
    }
}

thread_local! {
    static BENCH: Bench = Bench::new("llama");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn changed_gguf_files_are_read_or_refused(edits in edits(), in_header in any::<bool>()) {
        BENCH.with(|bench| {
            let file = lora("llama", &[("blk.0.attn_q.weight", [64, 64, 1], 2), ("token_embd.weight", [48, 64, 1], 2)]);
            let file = file.kv("adapter.alora.invocation_tokens", vec![3u32, 4]);
            let bytes = file.build();
            let head = if in_header { bytes.len() - 4 * (64 * 4 + 48 * 2 + 64 * 2) } else { bytes.len() };
            let path = bench.dir.path().join("edited.gguf");
            std::fs::write(&path, edited(bytes, head, &edits)).unwrap();
            try_open(&path, bench);
        });
    }

    #[test]
    fn changed_folders_are_read_or_refused(edits in edits(), which in 0..3u8) {
        BENCH.with(|bench| {
            let folder = PeftFolder::new()
                .set("use_dora", true)
                .set("alpha_pattern", json!({"v_proj": 3.5, "layers.(0|1).x": 1}))
                .pair("model.layers.0.self_attn.v_proj", [32, 64], 4)
                .tensor("model.layers.0.self_attn.v_proj.lora_magnitude_vector", &[32])
                .tensor("lm_head.weight", &[48, 64]);
            let path = folder.write(bench.dir.path());
            let (name, head) = match which {
                0 => ("adapter_config.json", folder.config.to_string().len()),
                1 => ("adapter_model.safetensors", 600),
                _ => ("adapter_model.safetensors", folder.tensor_bytes().len()),
            };
            let bytes = std::fs::read(path.join(name)).unwrap();
            std::fs::write(path.join(name), edited(bytes, head, &edits)).unwrap();
            try_open(&path, bench);
        });
    }
}

#[test]
fn a_file_that_claims_more_than_it_has_takes_no_memory() {
    let bench = Bench::new("llama");
    let header =
        json!({"base_model.model.lm_head.weight": {"dtype": "F32", "shape": [1u64 << 40, 1u64 << 20], "data_offsets": [0, 1u64 << 62]}});
    let path = PeftFolder::new().pair("lm_head", [48, 64], 4).write(bench.dir.path());
    let text = header.to_string();
    std::fs::write(path.join("adapter_model.safetensors"), [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()).unwrap();
    let error = open(&path, &bench.weights).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    for length in [0u64, 1 << 20, u64::MAX] {
        std::fs::write(path.join("adapter_model.safetensors"), length.to_le_bytes()).unwrap();
        try_open(&path, &bench);
    }
}

#[test]
fn an_adapter_has_a_bound() {
    let mut budget = crate::budget::Budget::default();
    assert!(budget.take("a", [1 << 15, 1 << 15, 1]).is_ok());
    let error = budget.take("blk.0.ffn_up_exps.weight", [1 << 10, 1 << 20, 2]).unwrap_err();
    assert!(error.contains("blk.0.ffn_up_exps.weight: with it the adapter has more than 2147483648 numbers"), "{error}");
    assert!(budget.take("b", [usize::MAX, 2, 1]).is_err());
}

#[test]
fn names_of_others_are_made_harmless() {
    let bench = Bench::new("llama");
    let error = bench.fault(&lora("llama", &[("blk.0.\u{1b}[2J.weight", [64, 64, 1], 2)]));
    assert!(error.contains("blk.0.\\u{1b}[2J.weight"), "{error}");
    let direction = gguf::GgufBuilder::new().kv("general.architecture", "controlvector").tensor_f32("\u{1b}c", &[64], &values("x", 64));
    assert!(!bench.fault(&direction).contains('\u{1b}'));
    let named = PeftFolder::new().set("base_model_name_or_path", "a\u{1b}[2J").pair("model.x\u{7}", [64, 64], 4);
    let error = named.fault(&bench);
    assert!(!error.contains(['\u{1b}', '\u{7}']), "{error}");
}
