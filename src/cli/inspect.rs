//! `penstock inspect`: the contents of a GGUF file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use outside::{in_json, in_line, visible};
use serde_json::{Map, json};

use super::names::file_of;
use super::output::put;
use crate::engine::{BackendKind, Scope, Shard, list_program};
use crate::gguf::{Array, GgufFile, TensorInfo, Value};
use crate::model::Weights;
use crate::serving::ModelFile;

/// Items of an array that JSON shows without `--full`.
const JSON_ITEMS: usize = 32;
/// Items of an array that text shows without `--full`.
const TEXT_ITEMS: usize = 6;
/// Characters of a string that text shows without `--full`.
const TEXT_CHARS: usize = 80;

#[derive(clap::Args, Debug)]
pub struct InspectArgs {
    /// A model on disk, or a GGUF file (any part of a split model)
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Do not shorten arrays and strings
    #[arg(long)]
    full: bool,
    /// Print the ops of a step instead, with their shapes and the bytes that they read and write for one row
    #[arg(long, conflicts_with_all = ["json", "full"])]
    program: bool,
    /// The backend whose program is printed
    #[arg(long, value_name = "cpu|cuda", default_value = "cpu", requires = "program", value_parser = backend)]
    backend: BackendKind,
    /// Only these layers: the first one, and the one behind the last
    #[arg(long, value_name = "A..B", requires = "program", value_parser = layers)]
    layers: Option<Range<usize>>,
    /// One of 2, 4 or 8 shards: its number, from 0, and how many there are
    #[arg(long, value_name = "R/G", requires = "program", value_parser = shard)]
    shard: Option<Shard>,
}

fn backend(name: &str) -> Result<BackendKind, String> {
    [BackendKind::Cpu, BackendKind::Cuda].into_iter().find(|kind| kind.name() == name).ok_or_else(|| "expected cpu or cuda".into())
}

fn layers(text: &str) -> Result<Range<usize>, String> {
    let (first, end) = numbers(text, "..").ok_or("expected two numbers, such as 0..16")?;
    Ok(first..end)
}

fn shard(text: &str) -> Result<Shard, String> {
    let (index, count) = numbers(text, "/").ok_or("expected two numbers, such as 0/4")?;
    Ok(Shard { index, count })
}

fn numbers(text: &str, between: &str) -> Option<(usize, usize)> {
    let (first, second) = text.split_once(between)?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

pub fn run(args: InspectArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let file = Arc::new(GgufFile::open(&file_of(config, &args.model)?)?);
    let written = match args.program {
        true => {
            let weights = Weights::load(file)?;
            let whole = Scope::whole(&weights.spec);
            let scope = Scope { layers: args.layers.unwrap_or(whole.layers), shard: args.shard.unwrap_or(whole.shard) };
            put(&visible(&list_program(&weights, weights.spec.context_length, &scope, args.backend)?))
        }
        false => {
            let fault = fault_of(&file);
            write_to_stdout(&args, &file, fault)
        }
    };
    match written {
        // The reader has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// The reason why the file cannot be served, if any: its weights, its vocabulary, or a mismatch of the two.
fn fault_of(file: &Arc<GgufFile>) -> Option<String> {
    let fault = format!("{:#}", ModelFile::of(file.clone()).err()?);
    // The report already begins with the path.
    Some(fault.strip_prefix(&format!("{}: ", file.path().display())).unwrap_or(&fault).to_owned())
}

/// Writes the report.
fn write_to_stdout(args: &InspectArgs, file: &GgufFile, fault: Option<String>) -> io::Result<()> {
    let mut text = Vec::new();
    match args.json {
        true => write_json(&mut text, file, fault, args.full)?,
        false => write_text(&mut text, file, fault, args.full)?,
    }
    let text = String::from_utf8_lossy(&text);
    put(&if args.json { in_json(&text) } else { visible(&text) })
}

/// Totals of the tensors of one type.
#[derive(Default)]
struct TypeShare {
    tensors: usize,
    weights: u64,
    bytes: u64,
}

/// Totals per type, largest first, and over all types. The sums cannot overflow, because tensors do not overlap in their files.
fn shares(file: &GgufFile) -> (Vec<(&'static str, TypeShare)>, TypeShare) {
    let (mut types, mut total) = (BTreeMap::<&str, TypeShare>::new(), TypeShare::default());
    for tensor in file.tensors() {
        for share in [types.entry(tensor.type_name()).or_default(), &mut total] {
            share.tensors += 1;
            share.weights += tensor.elements();
            share.bytes += tensor.nbytes;
        }
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(_, share)| std::cmp::Reverse(share.bytes));
    (types, total)
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn write_text(out: &mut dyn Write, file: &GgufFile, fault: Option<String>, full: bool) -> io::Result<()> {
    writeln!(out, "{}", in_line(&file.path().display().to_string()))?;
    writeln!(out, "GGUF version {}, {} bytes in {} file(s)", file.version(), file.file_bytes(), file.paths().count())?;
    match fault {
        None => writeln!(out, "the engines can run it")?,
        Some(fault) => writeln!(out, "the engines cannot run it: {}", in_line(&fault))?,
    }
    writeln!(out, "\nmetadata ({})", file.metadata().len())?;
    let width = file.metadata().map(|(key, _)| key.len()).max().unwrap_or_default().min(48);
    for (key, value) in file.metadata() {
        writeln!(out, "  {:width$}  {}", key.escape_debug().to_string(), text(value, full))?;
    }
    writeln!(out, "\ntensors ({})", file.tensors().len())?;
    let width = file.tensors().iter().map(|tensor| tensor.name.len()).max().unwrap_or_default().min(48);
    for tensor in file.tensors() {
        let TensorInfo { name, dims, nbytes, .. } = tensor;
        let (name, dims) = (name.escape_debug().to_string(), format!("{dims:?}"));
        writeln!(out, "  {name:width$}  {:7}  {dims:16}  {nbytes:>12} bytes", tensor.type_name())?;
    }
    let (types, total) = shares(file);
    writeln!(out, "\ntypes")?;
    let whole = total.bytes;
    for (name, share) in types.iter().chain([&("total", total)]) {
        let part = percent(share.bytes, whole);
        let TypeShare { tensors, weights, bytes } = share;
        writeln!(out, "  {name:7}  {tensors:>5} tensors  {weights:>14} weights  {bytes:>14} bytes  {part:5.1} %")?;
    }
    Ok(())
}

/// Formats a value in one line, with control characters escaped.
fn text(value: &Value, full: bool) -> String {
    match value {
        Value::String(string) => {
            let count = string.chars().count();
            if full || count <= TEXT_CHARS {
                return format!("{string:?}");
            }
            let start: String = string.chars().take(TEXT_CHARS).collect();
            format!("{start:?} … ({count} characters)")
        }
        Value::Array(array) => {
            let items: Vec<String> = array.first(if full { usize::MAX } else { TEXT_ITEMS }).iter().map(|item| text(item, full)).collect();
            let rest = if items.len() < array.len() { ", …" } else { "" };
            format!("{}[{}] [{}{rest}]", array.type_name(), array.len(), items.join(", "))
        }
        Value::Bool(flag) => flag.to_string(),
        Value::F32(x) => x.to_string(),
        Value::F64(x) => x.to_string(),
        other => other.as_int().map(|n| n.to_string()).unwrap_or_default(),
    }
}

fn write_json(out: &mut dyn Write, file: &GgufFile, fault: Option<String>, full: bool) -> io::Result<()> {
    let metadata: Map<_, _> = file
        .metadata()
        .map(|(key, value)| {
            let kind = value.as_array().map_or_else(|| value.type_name().to_owned(), |array| format!("array of {}", array.type_name()));
            (key.to_owned(), json!({ "type": kind, "value": to_json(value, full) }))
        })
        .collect();
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|tensor| {
            let TensorInfo { name, dims, shard, offset, nbytes, .. } = tensor;
            json!({ "name": name, "type": tensor.type_name(), "shape": dims, "bytes": nbytes, "file": shard, "offset": offset })
        })
        .collect();
    let (types, total) = shares(file);
    let types: Vec<_> = types
        .iter()
        .map(|(name, share)| {
            let TypeShare { tensors, weights, bytes } = share;
            json!({ "type": name, "tensors": tensors, "weights": weights, "bytes": bytes, "percent": percent(*bytes, total.bytes) })
        })
        .collect();
    let report = json!({
        "files": file.paths().map(|path| path.display().to_string()).collect::<Vec<_>>(),
        "version": file.version(),
        "bytes": file.file_bytes(),
        "runnable": fault.is_none(),
        "fault": fault,
        "metadata": metadata,
        "tensors": tensors,
        "types": types,
        "total": { "tensors": total.tensors, "weights": total.weights, "bytes": total.bytes },
    });
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}

/// Converts a value to JSON. Long arrays become their length and first items. Floats that JSON cannot represent become null.
fn to_json(value: &Value, full: bool) -> serde_json::Value {
    match value {
        Value::String(text) => json!(text),
        Value::Bool(flag) => json!(flag),
        // The shortest decimal that parses to the same float32, not the digits of its conversion to double.
        Value::F32(x) => json!(x.to_string().parse::<f64>().unwrap_or(f64::NAN)),
        Value::F64(x) => json!(x),
        Value::U64(n) => json!(n),
        Value::Array(array) => array_to_json(array, full),
        other => json!(other.as_int().and_then(|n| i64::try_from(n).ok())),
    }
}

fn array_to_json(array: &Array, full: bool) -> serde_json::Value {
    let shortened = !full && array.len() > JSON_ITEMS;
    let count = if shortened { JSON_ITEMS } else { array.len() };
    let items: Vec<_> = array.first(count).iter().map(|item| to_json(item, full)).collect();
    if shortened { json!({ "length": array.len(), "first": items }) } else { json!(items) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ARCHS;
    use crate::model::testing::TinyModel;

    fn outputs(full: bool) -> (String, serde_json::Value) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let tiny = TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) };
        tiny.build().kv("odd", "a\u{1b}[2Jb").write(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        let (mut plain, mut json) = (Vec::new(), Vec::new());
        write_text(&mut plain, &file, None, full).unwrap();
        write_json(&mut json, &file, None, full).unwrap();
        (String::from_utf8(plain).unwrap(), serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn long_arrays_are_shortened_unless_full() {
        let (plain, json) = outputs(false);
        assert!(plain.contains("string[320] [\"Ā\""), "{plain}");
        assert!(!plain.contains("<|unused319|>") && plain.contains(", …]"));
        assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["value"]["length"], 320);
        assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["value"]["first"].as_array().unwrap().len(), JSON_ITEMS);
        let (plain, json) = outputs(true);
        assert!(plain.contains("<|unused319|>"));
        assert_eq!(json["metadata"]["tokenizer.ggml.tokens"]["value"][319], "<|unused319|>");
    }

    #[test]
    fn totals_add_up_and_control_characters_are_escaped() {
        let (plain, json) = outputs(false);
        assert!(!plain.contains('\u{1b}'));
        let sum = |key: &str| json["types"].as_array().unwrap().iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!(json["total"]["bytes"], sum("bytes"));
        assert_eq!(json["total"]["tensors"], json["tensors"].as_array().unwrap().len());
        assert_eq!(json["total"]["bytes"], 4 * json["total"]["weights"].as_u64().unwrap());
        assert!(plain.contains("  total       20 tensors") && plain.contains("100.0 %"), "{plain}");
        assert_eq!(json["metadata"]["llama.attention.layer_norm_rms_epsilon"]["value"], 1e-5);
    }

    #[test]
    fn a_file_without_a_usable_vocabulary_is_not_said_to_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let tiny = || TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build();
        let fault = |builder: crate::gguf::GgufBuilder| {
            builder.write(&path).unwrap();
            fault_of(&Arc::new(GgufFile::open(&path).unwrap()))
        };
        assert_eq!(fault(tiny()), None);
        let cases = [
            (tiny().kv("tokenizer.ggml.pre", "unheard-of"), "tokenizer.ggml.pre: `unheard-of` is not supported"),
            (tiny().kv("tokenizer.ggml.model", "rwkv"), "tokenizer.ggml.model: `rwkv` is not supported"),
            (tiny().kv("llama.block_count", 0u32), "llama.block_count is 0"),
        ];
        for (builder, expected) in cases {
            let fault = fault(builder).unwrap_or_else(|| panic!("{expected}"));
            assert!(fault.contains(expected) && !fault.contains("tiny.gguf"), "{fault}");
        }
        assert!(fault(TinyModel::new(&ARCHS[0]).build()).unwrap().contains("tokenizer.ggml.model is missing"));
    }

    #[test]
    fn a_closed_pipe_is_reported_as_such() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel::new(&ARCHS[0]).build().write(&path).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(write_text(&mut Gone, &file, None, false).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(write_json(&mut Gone, &file, None, false).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
