//! `penstock eval`: perplexity on a text, and the divergence from a reference.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use serde::Serialize;

use super::device::DeviceArgs;
use super::eval_sums::{Figures, Sums};
use super::names::file_of;
use super::output::{Status, print, print_json};
use super::rows::{CHUNK, Rows, rows_at_once};
use crate::config::{Backend, CacheType};
use crate::engine::cpu::open_exact;
use crate::engine::{self, EngineOptions};
use crate::gguf::GgufFile;
use crate::logits::Distribution;
use crate::model::Weights;
use crate::registry::{backend, cache_type};
use crate::tokenizer::Tokenizer;

/// The longest text [bytes].
const MOST_TEXT: u64 = 1 << 28;

#[derive(clap::Args, Debug)]
#[command(
    after_help = "The text is cut into chunks of --context tokens. The first half of each is context only; the tokens of the second \
half are measured. Models that begin with a token of their own have it at the start of each chunk.

Examples:
  penstock eval model-q4_k_m.gguf --text wiki.txt
  penstock eval model-q4_k_m.gguf --reference model-f16.gguf --text wiki.txt --chunks 16
  penstock eval smollm2 --reference exact --text wiki.txt --json
  penstock eval smollm2 --cache-type q8 --reference-cache f32 --text wiki.txt"
)]
pub struct EvalArgs {
    /// An id or alias of a model on disk, or a GGUF file
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// The reference for the divergence: another model of the same vocabulary, or `exact`: the same weights in plain float32
    #[arg(long, value_name = "MODEL|FILE.gguf|exact")]
    reference: Option<String>,
    /// The reference's type of KV cache: auto, f32, f16 or q8. Without --reference, the reference is the model itself
    #[arg(long, value_name = "TYPE")]
    reference_cache: Option<CacheType>,
    /// The text (UTF-8)
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Tokens per chunk
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    context: u32,
    /// The number of chunks [default: all that the text has]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    #[command(flatten)]
    device: DeviceArgs,
    /// CPU threads; 0: one per physical core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The figures, with the model and the device that they were measured on.
#[derive(Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    device: String,
    reference: Option<String>,
    cache_type: &'static str,
    reference_cache: Option<&'static str>,
    context: u32,
    chunks: usize,
    #[serde(flatten)]
    figures: Figures,
    seconds: f64,
}

pub fn run(args: EvalArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let start = Instant::now();
    let file = Arc::new(GgufFile::open(&file_of(config, &args.model)?)?);
    let reference = match args.reference.as_deref() {
        None => args.reference_cache.map(|_| (file.clone(), false)),
        Some("exact") => Some((file.clone(), true)),
        Some(name) => Some((Arc::new(GgufFile::open(&file_of(config, name)?)?), false)),
    };
    if let Some((other, _)) = &reference {
        check_vocabulary(&file, other)?;
    }
    let chunks = chunks(&args, &file)?;
    let mut tested = open(&args, file, false, args.device.cache_type())?;
    let mut reference = reference.map(|(file, exact)| open(&args, file, exact, args.reference_cache.and_then(cache_type))).transpose()?;
    let (status, mut sums) = (Status::new(), Sums::default());
    for (number, ids) in chunks.iter().enumerate() {
        measure(ids, &mut tested, reference.as_mut(), &mut sums).with_context(|| format!("chunk {}", number + 1))?;
        status.show(&format!("chunk {} of {}, perplexity {:.4}", number + 1, chunks.len(), sums.perplexity()));
    }
    status.clear();
    let info = tested.engine.info();
    let report = Report {
        model: args.model.clone(),
        backend: info.backend.name(),
        device: info.device,
        reference: args.reference.or(args.reference_cache.map(|_| args.model.clone())),
        cache_type: tested.engine.kv_capacity().cache_type.name(),
        reference_cache: reference.as_ref().map(|rows| rows.engine.kv_capacity().cache_type.name()),
        context: args.context,
        chunks: chunks.len(),
        figures: sums.figures(),
        seconds: start.elapsed().as_secs_f64(),
    };
    if args.json { print_json(&report) } else { print(&text_of(&report)) }
}

/// Checks that both vocabularies are equal, because logits are compared token by token.
fn check_vocabulary(file: &GgufFile, reference: &GgufFile) -> anyhow::Result<()> {
    let key = "tokenizer.ggml.tokens";
    let sizes = [file, reference].map(|file| file.vocab_size().unwrap_or(0));
    ensure!(
        sizes[0] == sizes[1] && file.get(key) == reference.get(key),
        "--reference: {} has another vocabulary ({} tokens) than {} ({}): only models of one vocabulary can be compared",
        reference.path().display(),
        sizes[1],
        file.path().display(),
        sizes[0]
    );
    Ok(())
}

/// Cuts the text into chunks. If the model's texts begin with a BOS, each chunk does, too.
fn chunks(args: &EvalArgs, file: &GgufFile) -> anyhow::Result<Vec<Vec<u32>>> {
    let path = args.text.display();
    let mut text = String::new();
    // It may be a FIFO, which does not tell its length.
    let read = File::open(&args.text).and_then(|file| file.take(MOST_TEXT + 1).read_to_string(&mut text));
    read.with_context(|| format!("--text: cannot read {path}"))?;
    ensure!(text.len() as u64 <= MOST_TEXT, "--text: {path} has more than {MOST_TEXT} bytes, the most that are read: cut it");
    let tokenizer = Tokenizer::open(file).with_context(|| file.path().display().to_string())?;
    let bos = tokenizer.bos().filter(|bos| tokenizer.encode_with_bos_eos("", false).first() == Some(bos));
    let ids: Vec<u32> = bos.into_iter().chain(tokenizer.encode(&text, false)).collect();
    let context = args.context as usize;
    let whole = ids.len() / context;
    let count = args.chunks.map_or(whole, |chunks| chunks as usize);
    ensure!(
        whole > 0 && count <= whole,
        "--text: {path} has {} tokens, which are {whole} chunks of {context}, expected at least {}: give a longer text or less --context",
        ids.len(),
        count.max(1)
    );
    let mut chunks: Vec<Vec<u32>> = ids.chunks_exact(context).take(count).map(<[u32]>::to_vec).collect();
    if let Some(bos) = bos {
        chunks.iter_mut().for_each(|chunk| chunk[0] = bos);
    }
    Ok(chunks)
}

fn open(args: &EvalArgs, file: Arc<GgufFile>, exact: bool, cache_type: Option<engine::CacheType>) -> anyhow::Result<Rows> {
    let path = file.path().display().to_string();
    let weights = Weights::load(file)?;
    ensure!(
        !weights.spec.arch.bidirectional,
        "{path}: the model gives vectors, and perplexity needs logits: expected a model that generates"
    );
    if let Some(most) = weights.spec.max_positions().filter(|&most| most < args.context as usize) {
        bail!("--context is {}, and {path} has {most} positions: choose at most {most}", args.context);
    }
    let context = args.context as usize;
    let choice = args.device.backend(Backend::Auto)?;
    let at_once = rows_at_once(weights.spec.vocab_size);
    let options = EngineOptions {
        threads: args.threads,
        device: args.device.index(),
        context,
        kv_tokens: context,
        cache_type,
        max_slots: at_once,
        max_batch_tokens: CHUNK.max(at_once),
        ..EngineOptions::default()
    };
    let engine = if exact {
        open_exact(weights, &options).context("--reference exact")?
    } else {
        engine::open(weights, &options, backend(choice)).with_context(|| format!("{path} on {}", choice.name()))?
    };
    Ok(Rows::new(engine))
}

/// Measures the second half of a chunk.
fn measure(ids: &[u32], tested: &mut Rows, mut reference: Option<&mut Rows>, sums: &mut Sums) -> anyhow::Result<()> {
    let (first, last) = (ids.len() / 2, ids.len() - 1);
    tested.skip(ids, 0..first)?;
    if let Some(reference) = &mut reference {
        reference.skip(ids, 0..first)?;
    }
    let at_once = rows_at_once(tested.engine.spec().vocab_size);
    for start in (first..last).step_by(at_once) {
        let range = start..last.min(start + at_once);
        let rows = tested.read(ids, range.clone())?;
        let expected = reference.as_mut().map(|reference| reference.read(ids, range.clone())).transpose()?;
        for (i, row) in rows.iter().enumerate() {
            let of = |row| Distribution::new(row).with_context(|| format!("the logits at position {} are not finite", range.start + i));
            let id = ids[range.start + i + 1];
            let row = of(row)?;
            let reference = expected.as_ref().and_then(|rows| rows.get(i)).map(|row| of(row)).transpose()?;
            sums.add(&row, reference.as_ref(), id).context("a token is outside of the vocabulary")?;
        }
    }
    Ok(())
}

fn text_of(report: &Report) -> String {
    let Report { model, backend, device, cache_type, context, chunks, figures, .. } = report;
    let mut text = format!(
        "{model}, {backend} backend on {device}, KV cache of {cache_type}\n{chunks} chunks of {context} tokens, {} measured\n",
        figures.tokens
    );
    text += &format!("perplexity          {:.4} ± {:.4}\n", figures.perplexity, figures.perplexity_error);
    if let (Some(name), Some(cache), Some(against)) = (&report.reference, report.reference_cache, &figures.against) {
        text += &format!(
            "perplexity of the reference ({name}, KV cache of {cache})  {:.4} ± {:.4}\n",
            against.perplexity, against.perplexity_error
        );
        text += &format!("KL divergence: mean {:.3e} ± {:.1e}\n", against.kl_mean, against.kl_error);
        let (median, p99, most) = (against.kl_median, against.kl_p99, against.kl_max);
        text += &format!("               median {median:.3e}, p99 {p99:.3e}, max {most:.3e}\n");
        text += &format!("same first token    {:.2} % ± {:.2}\n", 100.0 * against.same_first, 100.0 * against.same_first_error);
    }
    text + &format!("{:.1} s\n", report.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_a_step_are_bounded_whatever_the_vocabulary() {
        for vocab in [1, 32_000, 262_144, 10_000_000] {
            let rows = rows_at_once(vocab);
            assert!((1..=64).contains(&rows) && (rows == 1 || rows * vocab * 4 <= 32 << 20), "{rows} rows of {vocab}");
        }
    }
}
