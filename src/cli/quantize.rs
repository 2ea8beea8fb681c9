//! `penstock quantize`: converts a model's tensors to other types.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::names::file_of;
use super::output::{Status, columns, file_type, human_bytes, print, print_json, say};
use crate::gguf::{GgufFile, ggml_type};
use crate::quantize::{FileType, Options, Report, TensorReport, plan, quantize};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "Start from a file of F32, F16 or BF16 tensors. A quantised source works too, and its own error stays in the result.

Examples:
  penstock quantize model-f16.gguf --type Q4_K_M
  penstock quantize model-f16.gguf --type Q8_0 -o model-q8_0.gguf
  penstock quantize smollm2 --type F32 -o smollm2-f32.gguf"
)]
pub struct QuantizeArgs {
    /// An id or alias of a model on disk, or a GGUF file
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// The file type: Q4_K_M, Q8_0, F16 and so on
    #[arg(long = "type", value_name = "TYPE", value_parser = file_type)]
    kind: &'static FileType,
    /// The output [default: the source's name with the type appended]
    #[arg(short, long, value_name = "FILE.gguf")]
    out: Option<PathBuf>,
    /// Replace the output if it exists
    #[arg(long)]
    force: bool,
    /// Write nothing, and print the planned contents of the output
    #[arg(long)]
    dry_run: bool,
    /// Threads; 0: one per processor
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    threads: u16,
    /// Print JSON: each tensor with its types, bytes and squared error
    #[arg(long)]
    json: bool,
}

pub fn run(args: QuantizeArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let start = Instant::now();
    let path = file_of(config, &args.model)?;
    let source = GgufFile::open(&path)?;
    let out = args.out.clone().unwrap_or_else(|| default_output(&args.model, &path, args.kind));
    warn_of_quantised(&source, args.kind);
    let report = if args.dry_run {
        planned(&source, args.kind).with_context(|| path.display().to_string())?
    } else {
        let (status, mut done, all) = (Status::new(), 0, source.tensors().len());
        let mut progress = |tensor: &TensorReport| {
            done += 1;
            status.show(&format!("{done} of {all}: {} to {}", tensor.name, tensor.to));
        };
        let options = Options { threads: args.threads.into(), force: args.force };
        let report = quantize(&source, args.kind, &out, &options, &mut progress);
        status.clear();
        report.with_context(|| path.display().to_string())?
    };
    let weights: u64 = source.tensors().iter().map(|tensor| tensor.elements()).sum();
    match args.json {
        true => print_json(&json_of(&args, &report, &out, start)),
        false => print(&text_of(&args, &report, (&out, source.file_bytes(), weights), start)),
    }
}

/// The default output: next to the source if it was given as a file, and in the current directory if it was given by name.
fn default_output(name: &str, path: &Path, kind: &FileType) -> PathBuf {
    if Path::new(name).is_file() {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        return path.with_file_name(format!("{stem}-{}.gguf", kind.name));
    }
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '-' }).collect();
    format!("{safe}-{}.gguf", kind.name).into()
}

/// Warns if the source is quantised already. The errors add up, and the output does not show it.
fn warn_of_quantised(source: &GgufFile, kind: &FileType) {
    let is_whole = |id: u32| matches!(id, 0 | 1 | 30);
    if !is_whole(kind.base) && source.tensors().iter().any(|tensor| ggml_type(tensor.type_id).is_some_and(|kind| kind.block_size > 1)) {
        say(&format!("warning: {} is quantised already, and its error stays in the result", source.path().display()));
    }
}

/// The report of a run that writes nothing.
fn planned(source: &GgufFile, kind: &FileType) -> anyhow::Result<Report> {
    let mut report = Report::default();
    for planned in plan(source, kind)? {
        let tensor = &source.tensors()[planned.tensor];
        let to = ggml_type(planned.type_id).map_or("unknown", |kind| kind.name);
        report.bytes += planned.bytes;
        let (name, from) = (tensor.name.clone(), tensor.type_name());
        report.tensors.push(TensorReport { name, from, to, bytes: planned.bytes, relative_error: 0.0 });
    }
    Ok(report)
}

fn json_of(args: &QuantizeArgs, report: &Report, out: &Path, start: Instant) -> Value {
    let tensor = |tensor: &TensorReport| {
        let TensorReport { name, from, to, bytes, relative_error } = tensor;
        json!({ "name": name, "from": from, "to": to, "bytes": bytes, "relative_squared_error": relative_error })
    };
    json!({
        "model": args.model,
        "type": args.kind.name,
        "out": (!args.dry_run).then(|| out.display().to_string()),
        "bytes": report.bytes,
        "seconds": start.elapsed().as_secs_f64(),
        "tensors": report.tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}

fn text_of(args: &QuantizeArgs, report: &Report, (out, before, weights): (&Path, u64, u64), start: Instant) -> String {
    let mut types = BTreeMap::<(&str, &str), (usize, u64, f64)>::new();
    for tensor in &report.tensors {
        let row = types.entry((tensor.from, tensor.to)).or_default();
        *row = (row.0 + 1, row.1 + tensor.bytes, row.2.max(tensor.relative_error));
    }
    let mut rows = vec![["from", "to", "tensors", "bytes", "largest relative error"].map(str::to_owned)];
    for ((from, to), (count, bytes, error)) in types {
        let error = if error > 0.0 { format!("{:.3} %", 100.0 * error.sqrt()) } else { "-".to_owned() };
        rows.push([from.to_owned(), to.to_owned(), count.to_string(), human_bytes(bytes), error]);
    }
    let (bits, seconds) = (8.0 * report.bytes as f64 / weights.max(1) as f64, start.elapsed().as_secs_f64());
    let last = if args.dry_run {
        format!("{} would take {} ({bits:.2} bits per weight); nothing was written\n", args.kind.name, human_bytes(report.bytes))
    } else {
        let (bytes, before) = (human_bytes(report.bytes), human_bytes(before));
        format!("wrote {}: {bytes} of {before} ({bits:.2} bits per weight) in {seconds:.1} s\n", out.display())
    };
    columns(&rows) + &last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types_are_known_in_any_case() {
        for (name, known) in [("q4_k_m", "Q4_K_M"), ("Q4_K", "Q4_K_M"), ("f16", "F16"), ("Q8_0", "Q8_0")] {
            assert_eq!(file_type(name).map(|kind| kind.name), Ok(known));
        }
        assert!(file_type("Q9").unwrap_err().contains("Q4_K_M"));
    }

    #[test]
    fn an_output_without_a_name_says_its_type() {
        let kind = FileType::by_name("Q4_0").unwrap();
        let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
        let (path, name) = (file.path(), file.path().to_str().unwrap());
        let out = default_output(name, path, kind);
        assert_eq!(out.parent(), path.parent());
        assert_eq!(out.file_name().unwrap().to_str().unwrap(), format!("{}-Q4_0.gguf", path.file_stem().unwrap().to_str().unwrap()));
        assert_eq!(default_output("org/qwen:0.5b", Path::new("/store/model.gguf"), kind), Path::new("org-qwen-0.5b-Q4_0.gguf"));
    }
}
