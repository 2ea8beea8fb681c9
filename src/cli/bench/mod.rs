//! `penstock bench`: the speed of an engine, without a server.

mod depth;
mod kernels;
mod measure;
mod mixed;
mod plot;
mod report;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};

use super::device::DeviceArgs;
use super::names::file_of;
use super::output::{print, print_json};
use crate::config::Backend;
use crate::engine::{self, BackendKind, EngineInfo, EngineOptions, Resident};
use crate::gguf::{Backing, GgufFile};
use crate::model::{ModelSpec, Weights};
use crate::registry::backend;
use crate::serving::{DraftFile, ModelFile};
use measure::{Measured, step_bytes};
use report::{Measurement, Report, Row};
use scheduler::Engines;

/// The most tokens of a prompt or an answer. Beyond this limit block numbers would overflow.
const MOST_TOKENS: i64 = 1 << 20;

const EXAMPLES: &str = "Examples:
  penstock bench smollm2:135m --batch 1,8,64
  penstock bench a.gguf b.gguf                        two models in one table
  penstock bench model.gguf --context 0,8192,32000 --batch 1,16 --plot decode.svg
  penstock bench model.gguf --context 8192 --cache-type q8
  penstock bench model.gguf --kernels=sm_90a --batch 1,8,64
  penstock bench model.gguf --mixed --requests 512 --at-once 8,32,128 --prompt 512 --gen 128 --json
  penstock bench model.gguf --mixed --at-once 1 --drafts ngram --accept 0.7 --draft-tokens 4";

#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Ids or aliases of models on disk, or GGUF files
    #[arg(value_name = "MODEL|FILE.gguf", required_unless_present = "model", conflicts_with = "model")]
    models: Vec<String>,
    /// Same as MODEL
    #[arg(long, value_name = "MODEL|FILE.gguf")]
    model: Vec<String>,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    prompt: u32,
    /// Tokens to decode after each prompt
    #[arg(long = "gen", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    generate: u32,
    /// Numbers of sequences that decode at once, one measurement for each
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Measure decoding after contexts of these lengths
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', conflicts_with = "prompt",
        value_parser = clap::value_parser!(u32).range(0..=MOST_TOKENS))]
    context: Vec<u32>,
    /// Measure a closed loop of requests through the scheduler, each with a prompt of random tokens
    #[arg(long, conflicts_with_all = ["context", "batch", "prefill_chunk", "repeat"])]
    mixed: bool,
    /// With --mixed: requests per measurement [default: four times as many as at once, at least 16]
    #[arg(long, requires = "mixed", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: Option<u32>,
    /// With --mixed: numbers of requests at once, one measurement for each
    #[arg(long, requires = "mixed", value_name = "COUNT", value_delimiter = ',', default_value = "8",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    at_once: Vec<u32>,
    /// With --mixed: the seed of the random prompts
    #[arg(long, requires = "mixed", default_value_t = 0)]
    seed: u64,
    /// With --mixed: the most tokens per step, of prompts and answers [default: the device's, as in a server]
    #[arg(long, requires = "mixed", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    step_tokens: Option<u32>,
    /// With --mixed: draft the answers from their own context (ngram), or with the file's draft head, too (heads), or with a smaller model
    #[arg(long, requires = "mixed", value_name = "ngram|heads|model=MODEL", value_parser = drafter)]
    drafts: Option<Drafter>,
    /// With --drafts: draft from the answers, generated beforehand, with tokens that are right with this probability, so that the speed
    /// does not depend on the text
    #[arg(long, requires = "drafts", value_name = "PROBABILITY", value_parser = probability)]
    accept: Option<f64>,
    /// With --drafts: the most drafted tokens per step
    #[arg(long, requires = "drafts", value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=16))]
    draft_tokens: Option<u32>,
    /// With --mixed: whether the GPU runs decode steps in loops, as the setting engine.resident says
    #[arg(long, requires = "mixed", value_name = "WHEN", default_value = "off", value_parser = ["auto", "on", "off"])]
    resident: String,
    /// Rows per prefill step [default: 512 on the CPU, 2048 on a GPU]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prefill_chunk: Option<u32>,
    /// Print the kernels that the steps would run on the GPU, or on one of this architecture, instead of measuring: sm_90a, sm_89, sm_86,
    /// sm_80 or sm_75, for which no GPU is needed
    #[arg(long, value_name = "ARCH", num_args = 0..=1, require_equals = true, default_missing_value = "",
        conflicts_with_all = ["mixed", "json", "plot", "repeat", "threads"])]
    kernels: Option<String>,
    /// Runs of each measurement, after a warm-up run; the medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// CPU threads; 0: one per physical core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print JSON: one object per model, in an array if there are several
    #[arg(long)]
    json: bool,
    /// Also draw the measurements
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// What drafts the answers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Drafter {
    Ngram,
    Heads,
    /// The id, the alias or the path of a draft model.
    Model(String),
}

fn drafter(text: &str) -> Result<Drafter, String> {
    match (text, text.strip_prefix("model=")) {
        ("ngram", _) => Ok(Drafter::Ngram),
        ("heads", _) => Ok(Drafter::Heads),
        (_, Some(name)) if !name.is_empty() => Ok(Drafter::Model(name.to_owned())),
        _ => Err("expected ngram, heads or model=MODEL".into()),
    }
}

const BLOCK: u32 = 32;
/// Drafts of a step of a model with recurrent state, as in a server.
const DRAFT_STATES: usize = 8;
const CPU_CHUNK: u32 = 512;
const GPU_CHUNK: u32 = 2048;
/// Sequence slots for runs that copy caches. A step copies at most this many blocks.
const COPY_SLOTS: u32 = 64;

fn probability(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "expected a number from 0 to 1".into())
}

pub fn run(args: BenchArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let names = if args.models.is_empty() { &args.model } else { &args.models };
    // All names are looked up first, so that a typo in the last one is reported before the first measurement.
    let files = names.iter().map(|name| file_of(config, name)).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(arch) = &args.kernels {
        for (name, file) in names.iter().zip(&files) {
            let kernels = args.kernels_of(arch, file).with_context(|| name.clone())?;
            print(&format!("{name}\n\n{kernels}"))?;
        }
        return Ok(());
    }
    let mut reports = Vec::new();
    let draft = match &args.drafts {
        Some(Drafter::Model(name)) => Some(file_of(config, name)?),
        _ => None,
    };
    for (name, file) in names.iter().zip(&files) {
        reports.push(args.measure(name, (file, draft.as_deref())).with_context(|| name.clone())?);
    }
    match (args.json, &reports[..]) {
        (true, [one]) => print_json(one)?,
        (true, several) => print_json(&several)?,
        (false, _) => print(&report::text(&reports))?,
    }
    let Some(path) = &args.plot else { return Ok(()) };
    let drawn = plot::svg(&reports);
    outside::write(path, |file| file.write_all(drawn.as_bytes())).with_context(|| format!("cannot write {}", path.display()))
}

impl BenchArgs {
    fn mode(&self) -> &'static str {
        match (self.mixed, self.context.is_empty()) {
            (true, _) => "mixed",
            (false, false) => "context",
            (false, true) => "decode",
        }
    }

    fn measure(&self, name: &str, (file, draft): (&Path, Option<&Path>)) -> anyhow::Result<Report> {
        let Engines { mut engine, draft } = self.open(file, draft)?;
        let info = engine.info();
        let copy = engine.copy_bandwidth();
        let chunk = self.prefill_chunk.unwrap_or(if info.backend == BackendKind::Cpu { CPU_CHUNK } else { GPU_CHUNK });
        let spec = engine.spec().clone();
        let (step_tokens, mode, cache_type) = (info.max_batch_tokens, self.mode(), engine.kv_capacity().cache_type.name());
        let row = |context: Option<u32>, measured| Row::Steps(self.row(&spec, &info, copy, context, measured));
        let rows = match mode {
            "mixed" => self.mixed(Engines { engine, draft }, step_tokens)?,
            "context" => {
                let found = self.depths(chunk).run(&mut *engine)?;
                found.into_iter().map(|at| row(Some(at.context), at.measured)).collect()
            }
            _ => {
                let plan = measure::Plan { prompt: self.prompt, generate: self.generate, repeat: self.repeat, chunk };
                let found = self.batch.iter().map(|&batch| plan.run(&mut *engine, batch)).collect::<anyhow::Result<Vec<_>>>()?;
                found.into_iter().map(|measured| row(None, measured)).collect()
            }
        };
        Ok(Report {
            model: spec.name.clone(),
            name: Path::new(name).file_stem().filter(|_| name.ends_with(".gguf")).map_or(name.into(), |stem| stem.to_string_lossy().into()),
            mode,
            version: env!("CARGO_PKG_VERSION"),
            backend: info.backend.name(),
            device: info.device.clone(),
            cache_type,
            prompt: (mode != "context").then_some(self.prompt),
            generated: self.generate,
            prefill_chunk: (!self.mixed).then_some(chunk),
            step_tokens: self.mixed.then_some(step_tokens),
            seed: self.mixed.then_some(self.seed),
            loop_step_microseconds: info.loop_times.map(|times| [times.from_host, times.in_loop].map(|seconds| seconds * 1e6)),
            loop_turn: info.loop_times.map(|times| times.turn),
            weight_bytes: info.weight_bytes,
            load_gigabytes_per_second: info.load_bandwidth.map(|bytes| bytes / 1e9),
            copy_gigabytes_per_second: copy.map(|bytes| bytes / 1e9),
            rows,
        })
    }

    fn depths(&self, chunk: u32) -> depth::Plan<'_> {
        let Self { context, batch, generate, repeat, .. } = self;
        let slots = self.slots();
        depth::Plan { contexts: context, batches: batch, generate: *generate, repeat: *repeat, chunk, slots }
    }

    fn mixed(&self, engines: Engines, step_tokens: usize) -> anyhow::Result<Vec<Row>> {
        let drafts = self.drafts.as_ref().map(|_| mixed::Drafts { accept: self.accept, most: self.draft_tokens });
        let Self { requests, prompt, generate, seed, .. } = *self;
        let plan = mixed::Plan { requests, prompt, generate, seed, step_tokens, drafts };
        Ok(mixed::run(engines, plan, &self.at_once)?.into_iter().map(Row::Mixed).collect())
    }

    fn row(&self, spec: &ModelSpec, info: &EngineInfo, copy: Option<f64>, context: Option<u32>, measured: Measured) -> Measurement {
        let Measured { batch, prefill, step } = measured;
        let middle = context.unwrap_or(self.prompt).max(1) + self.generate / 2;
        let read = step_bytes(spec, info, middle as usize, batch).map(|bytes| bytes / step);
        Measurement {
            context,
            batch,
            prefill_tokens_per_second: prefill,
            decode_step_milliseconds: step * 1e3,
            decode_tokens_per_second: f64::from(batch) / step,
            decode_gigabytes_per_second: read.map(|read| read / 1e9),
            decode_bandwidth_share: read.zip(copy).map(|(read, copy)| read / copy),
        }
    }

    /// The most sequences that run at once.
    fn slots(&self) -> u32 {
        let of = |counts: &[u32]| counts.iter().copied().max().unwrap_or(1);
        match self.mode() {
            "mixed" => of(&self.at_once),
            "context" if of(&self.batch) > 1 => of(&self.batch).max(COPY_SLOTS),
            _ => of(&self.batch),
        }
    }

    fn open(&self, file: &Path, draft: Option<&Path>) -> anyhow::Result<Engines> {
        let tokens = match self.mode() {
            "context" => self.depths(1).most_tokens(),
            _ => self.prompt + self.generate,
        };
        let sequences = if self.mixed { self.slots() } else { self.batch.iter().copied().max().unwrap_or(1) };
        let context = tokens.next_multiple_of(BLOCK) as usize;
        let max_batch_tokens = match self.mixed {
            true => {
                let fits = self.step_tokens.is_none_or(|rows| rows >= sequences);
                ensure!(fits, "--step-tokens is less than --at-once: each of {sequences} sequences needs a row of a step");
                // 0: the device's own
                self.step_tokens.unwrap_or(0)
            }
            false => self.prefill_chunk.unwrap_or(GPU_CHUNK).max(self.slots()),
        };
        let weights = Weights::load(Arc::new(GgufFile::open(file)?))?;
        ensure!(!weights.spec.arch.bidirectional, "the model gives vectors, not text: bench measures models that generate");
        let options = EngineOptions {
            threads: self.threads,
            device: self.device.index(),
            context,
            // The scheduler reserves an eighth for requests that run nothing yet.
            kv_tokens: context * (if self.mixed { (sequences * 5).div_ceil(4) } else { sequences }) as usize,
            block_size: BLOCK as usize,
            cache_type: self.device.cache_type(),
            max_slots: self.slots() as usize,
            max_batch_tokens: max_batch_tokens as usize,
            draft_states: if self.drafts.is_some() { DRAFT_STATES } else { 0 },
            draft_head: self.drafts == Some(Drafter::Heads),
            resident: match &*self.resident {
                "auto" => Resident::Auto,
                "on" => Resident::On,
                _ => Resident::Off,
            },
            ..EngineOptions::default()
        };
        let chosen = self.device.backend(Backend::Auto)?;
        let engine = engine::open(weights, &options, backend(chosen)).with_context(|| format!("--backend {}", chosen.name()))?;
        let has_head = engine.info().draft_head.is_some();
        ensure!(has_head || !options.draft_head, "--drafts heads: the file has no draft head, or the backend runs none: try --backend cpu");
        let open_draft = |path: &Path| {
            let draft = DraftFile::open(path, Backing::Mapped, &ModelFile::open(file, Backing::Mapped)?)?;
            draft.open_beside(&*engine, &options).context("--drafts model")
        };
        let draft = draft.map(open_draft).transpose()?;
        Ok(Engines { engine, draft })
    }
}
