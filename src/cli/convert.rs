//! `penstock convert`: converts a Hugging Face checkpoint to a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::output::{Status, columns, file_type, human_bytes, print, print_json, say};
use crate::convert::{Conversion, Options, Report, TensorReport};
use crate::quantize::FileType;

#[derive(clap::Args, Debug)]
#[command(after_help = "The folder holds config.json, the weights as *.safetensors (F32, F16 or BF16) and the tokenizer's files.

Examples:
  penstock convert Qwen3-0.6B
  penstock convert Qwen3-0.6B --type Q4_K_M -o qwen3-q4_k_m.gguf
  penstock convert Qwen3-0.6B --type Q8_0 --dry-run")]
pub struct ConvertArgs {
    /// The folder of the checkpoint
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The file type: BF16, Q8_0, Q4_K_M and so on [default: the checkpoint's own float type]
    #[arg(long = "type", value_name = "TYPE", value_parser = file_type)]
    kind: Option<&'static FileType>,
    /// The output [default: the folder's name with the type at its end, in the current directory]
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

pub fn run(args: ConvertArgs) -> anyhow::Result<()> {
    let start = Instant::now();
    let options = Options { kind: args.kind, threads: args.threads.into(), force: args.force };
    let conversion = Conversion::plan(&args.dir, options).with_context(|| args.dir.display().to_string())?;
    let out = args.out.clone().unwrap_or_else(|| default_output(&args.dir, conversion.kind));
    let report = if args.dry_run { conversion.report() } else { written(&conversion, &args, &out)? };
    for note in &report.notes {
        say(&format!("note: {note}"));
    }
    match args.json {
        true => print_json(&json_of(&args, &conversion, &report, &out, start)),
        false => print(&text_of(&args, &conversion, &report, &out, start)),
    }
}

fn written(conversion: &Conversion, args: &ConvertArgs, out: &Path) -> anyhow::Result<Report> {
    let (status, mut done, all) = (Status::new(), 0, conversion.tensors());
    let mut progress = |tensor: &TensorReport| {
        done += 1;
        status.show(&format!("{done} of {all}: {} to {}", tensor.name, tensor.to));
    };
    let report = conversion.write(out, &mut progress);
    status.clear();
    report.with_context(|| args.dir.display().to_string())
}

fn default_output(dir: &Path, kind: &FileType) -> PathBuf {
    let whole = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let name = whole.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    format!("{name}-{}.gguf", kind.name).into()
}

fn json_of(args: &ConvertArgs, conversion: &Conversion, report: &Report, out: &Path, start: Instant) -> Value {
    let tensor = |tensor: &TensorReport| {
        let TensorReport { name, from, to, bytes, relative_error, .. } = tensor;
        json!({ "name": name, "from": from, "to": to, "bytes": bytes, "relative_squared_error": relative_error })
    };
    json!({
        "checkpoint": args.dir.display().to_string(),
        "architecture": conversion.architecture,
        "type": conversion.kind.name,
        "out": (!args.dry_run).then(|| out.display().to_string()),
        "bytes": report.bytes,
        "seconds": start.elapsed().as_secs_f64(),
        "notes": report.notes,
        "tensors": report.tensors.iter().map(tensor).collect::<Vec<_>>(),
    })
}

fn text_of(args: &ConvertArgs, conversion: &Conversion, report: &Report, out: &Path, start: Instant) -> String {
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
    let weights: u64 = report.tensors.iter().map(|tensor| tensor.elements).sum();
    let (bits, seconds) = (8.0 * report.bytes as f64 / weights.max(1) as f64, start.elapsed().as_secs_f64());
    let (arch, kind, bytes) = (conversion.architecture, conversion.kind.name, human_bytes(report.bytes));
    let last = if args.dry_run {
        format!("{arch} in {kind} would take {bytes} ({bits:.2} bits per weight); nothing was written\n")
    } else {
        format!("wrote {}: {arch} in {kind}, {bytes} ({bits:.2} bits per weight) in {seconds:.1} s\n", out.display())
    };
    columns(&rows) + &last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_without_a_name_is_that_of_the_folder_with_the_type() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        let kind = FileType::by_name("BF16").unwrap();
        assert_eq!(default_output(&dir.path().join("."), kind), Path::new(&format!("{name}-BF16.gguf")));
    }
}
