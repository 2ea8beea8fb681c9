//! Tests whole files: what is written, what is refused, and that nothing is left behind.

use std::path::Path;

use crate::{FILE_TYPES, FileType, Options, QuantizeError, plan, quantize};
use gguf::{GgufBuilder, GgufFile, Value};

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 333.0).collect()
}

/// A source with matrices of whole and of incomplete blocks, vectors, a router, and metadata that goes stale.
fn source() -> GgufBuilder {
    GgufBuilder::new()
        .kv("general.architecture", "llama")
        .kv("llama.block_count", 8u32)
        .kv("general.file_type", 0u32)
        .kv("quantize.imatrix.file", "old")
        .kv("tokenizer.ggml.tokens", vec!["a".to_owned(), "b".to_owned()])
        .tensor_f32("token_embd.weight", &[256, 12], &ramp(256 * 12))
        .tensor_f32("blk.0.attn_norm.weight", &[256], &ramp(256))
        .tensor_f32("blk.0.attn_v.weight", &[256, 8], &ramp(256 * 8))
        .tensor_f32("blk.3.attn_v.weight", &[256, 8], &ramp(256 * 8))
        .tensor_f32("blk.0.ffn_gate_inp.weight", &[256, 4], &ramp(1024))
        .tensor_f32("blk.0.ffn_up.weight", &[96, 5], &ramp(480))
        .tensor_f32("blk.0.ffn_gate.weight", &[20, 3], &ramp(60))
        .tensor_f32("blk.0.ffn_up_exps.weight", &[256, 2, 3], &ramp(1536))
        .tensor_f32("blk.0.attn_q.bias", &[256], &ramp(256))
        .tensor_f32("output.weight", &[256, 12], &ramp(256 * 12))
}

fn open(dir: &Path, builder: &GgufBuilder) -> GgufFile {
    let path = dir.join("source.gguf");
    builder.write(&path).unwrap();
    GgufFile::open(&path).unwrap()
}

fn run(source: &GgufFile, kind: &str, out: &Path) -> Result<crate::Report, QuantizeError> {
    quantize(source, FileType::by_name(kind).unwrap(), out, &Options::default(), &mut |_| {})
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_has_the_types_of_its_plan_and_the_metadata_of_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(dir.path(), &source());
    for kind in FILE_TYPES {
        let out = dir.path().join(format!("{}.gguf", kind.name));
        let report = run(&source, kind.name, &out).unwrap();
        let written = GgufFile::open(&out).unwrap();
        assert_eq!(report.bytes, std::fs::metadata(&out).unwrap().len());
        for planned in plan(&source, kind).unwrap() {
            let (before, after) = (&source.tensors()[planned.tensor], &written.tensors()[planned.tensor]);
            assert_eq!(
                (&after.name, &after.dims, after.type_id, after.nbytes),
                (&before.name, &before.dims, planned.type_id, planned.bytes)
            );
            if before.type_id == after.type_id {
                assert_eq!(source.data(before), written.data(after), "{} in {}", before.name, kind.name);
            }
        }
        assert_eq!(written.get("general.file_type"), Some(&Value::U32(kind.id)));
        assert_eq!(written.get("general.quantization_version"), Some(&Value::U32(2)));
        assert_eq!(written.get("quantize.imatrix.file"), None);
        assert_eq!(written.get("tokenizer.ggml.tokens"), source.get("tokenizer.ggml.tokens"));
    }
}

#[test]
fn matrices_get_their_types_and_everything_else_keeps_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(dir.path(), &source());
    let types = |kind: &str| -> Vec<&str> {
        let planned = plan(&source, FileType::by_name(kind).unwrap()).unwrap();
        planned.iter().map(|planned| gguf::ggml_type(planned.type_id).unwrap().name).collect()
    };
    // The first layer with a value matrix lies in neither eighth. The last layer does.
    let common = |embedding, values: [&'static str; 2], ragged, experts, output| {
        vec![embedding, "F32", values[0], values[1], "F32", ragged, "F16", experts, "F32", output]
    };
    assert_eq!(types("Q4_K_M"), common("Q4_K", ["Q4_K", "Q6_K"], "Q5_0", "Q4_K", "Q6_K"));
    assert_eq!(types("Q4_K_S"), common("Q4_K", ["Q5_K", "Q5_K"], "Q5_0", "Q4_K", "Q6_K"));
    assert_eq!(types("Q5_K_M"), common("Q5_K", ["Q5_K", "Q6_K"], "Q5_1", "Q5_K", "Q6_K"));
    assert_eq!(types("Q6_K"), common("Q6_K", ["Q6_K", "Q6_K"], "Q8_0", "Q6_K", "Q6_K"));
    assert_eq!(types("Q2_K"), common("Q2_K", ["Q3_K", "Q3_K"], "IQ4_NL", "Q2_K", "Q6_K"));
    assert_eq!(types("Q8_0"), common("Q8_0", ["Q8_0", "Q8_0"], "Q8_0", "Q8_0", "Q8_0"));
    assert_eq!(types("Q4_0"), common("Q4_0", ["Q4_0", "Q4_0"], "Q4_0", "Q4_0", "Q6_K"));
    assert_eq!(types("BF16"), ["BF16", "F32", "BF16", "BF16", "F32", "BF16", "BF16", "BF16", "F32", "BF16"]);
}

#[test]
fn what_is_not_finite_or_too_large_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for (value, kind, expected) in [
        (f32::NAN, "Q8_0", "tensor output.weight: weight 300 is NaN: only finite weights can be quantised"),
        (f32::NEG_INFINITY, "F16", "tensor output.weight: weight 300 is -inf: only finite weights can be quantised"),
        (1e9, "F16", "tensor output.weight: a weight near 300 is too large for F16 (1e9): choose BF16 or F32"),
    ] {
        let mut weights = ramp(512);
        weights[300] = value;
        let source = open(dir.path(), &GgufBuilder::new().tensor_f32("output.weight", &[256, 2], &weights));
        let error = run(&source, kind, &dir.path().join("out.gguf")).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(names(dir.path()), ["source.gguf"]);
    }
}

#[test]
fn a_scale_beyond_half_precision_is_refused_by_every_type_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(dir.path(), &GgufBuilder::new().tensor_f32("blk.0.ffn_up.weight", &[256, 2], &[3e20; 512]));
    for kind in FILE_TYPES {
        let result = run(&source, kind.name, &dir.path().join(kind.name));
        let holds = matches!(kind.name, "F32" | "BF16");
        match result {
            Ok(_) => assert!(holds, "{}", kind.name),
            Err(error) => assert!(!holds && error.to_string().contains("too large"), "{}: {error}", kind.name),
        }
    }
}

#[test]
fn an_existing_output_and_the_source_itself_are_safe() {
    let dir = tempfile::tempdir().unwrap();
    let source = open(dir.path(), &source());
    let out = dir.path().join("out.gguf");
    std::fs::write(&out, "mine").unwrap();
    assert!(matches!(run(&source, "Q8_0", &out), Err(QuantizeError::Exists(_))));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    let force = Options { force: true, ..Options::default() };
    let kind = FileType::by_name("Q8_0").unwrap();
    let itself = quantize(&source, kind, &dir.path().join("./source.gguf"), &force, &mut |_| {});
    assert!(matches!(itself, Err(QuantizeError::SameFile(_))));
    quantize(&source, kind, &out, &force, &mut |_| {}).unwrap();
    assert!(GgufFile::open(&out).is_ok());
    let missing = run(&source, "Q8_0", &dir.path().join("no/such/folder.gguf")).unwrap_err();
    assert!(matches!(missing, QuantizeError::Write { .. }), "{missing}");
    assert_eq!(names(dir.path()), ["out.gguf", "source.gguf"]);
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let dir = tempfile::tempdir().unwrap();
    let weights = ramp(256 * 10_000);
    let source = open(dir.path(), &GgufBuilder::new().tensor_f32("blk.0.ffn_up.weight", &[256, 10_000], &weights));
    let kind = FileType::by_name("Q4_0").unwrap();
    let files = [1, 3].map(|threads| {
        let out = dir.path().join(format!("{threads}.gguf"));
        quantize(&source, kind, &out, &Options { threads, force: false }, &mut |_| {}).unwrap();
        std::fs::read(out).unwrap()
    });
    assert!(files[0] == files[1] && files[0].len() > 1_440_000);
}
