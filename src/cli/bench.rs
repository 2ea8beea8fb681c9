//! `penstock bench`: the speed of an engine, without a server.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;

use crate::config::Backend;
use crate::engine::{self, BackendKind, Batch, Engine, EngineInfo, EngineOptions, Input, SlotInit, StepId, StepOutput, Tables};
use crate::gguf::GgufFile;
use crate::logits::SamplingParams;
use crate::model::{LayerSpec, ModelSpec, Weights};
use crate::registry::backend;

/// The most tokens of a prompt or an answer. Beyond this limit block numbers would overflow.
const MOST_TOKENS: i64 = 1 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  penstock bench --model model.gguf --prompt 256 --gen 128 --batch 1,8,64")]
pub struct Args {
    /// A GGUF model file
    #[arg(long, value_name = "FILE.gguf")]
    model: PathBuf,
    /// Where to compute: auto, cpu or cuda
    #[arg(long, default_value = "auto")]
    backend: Backend,
    /// Index of the GPU
    #[arg(long, default_value_t = 0)]
    device: u32,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    prompt: u32,
    /// Tokens to decode after each prompt
    #[arg(long = "gen", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    generate: u32,
    /// Numbers of sequences that decode at once, one measurement for each
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Rows per prefill step [default: 512 on the CPU, 2048 on a GPU]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u32).range(1..=65536))]
    prefill_chunk: Option<u32>,
    /// Runs of each measurement, after one that does not count; the medians are printed
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// CPU threads; 0: one per physical core
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const BLOCK: u32 = 32;
const CPU_CHUNK: u32 = 512;
const GPU_CHUNK: u32 = 2048;

/// The measurements, and the model and device that they were made with.
#[derive(serde::Serialize)]
struct Report {
    model: String,
    backend: &'static str,
    device: String,
    prompt: u32,
    generated: u32,
    prefill_chunk: u32,
    /// Bytes of all weights in the device's memory.
    weight_bytes: u64,
    /// The speed at which the file was copied to the device.
    load_gigabytes_per_second: Option<f64>,
    /// The speed of a copy within the device's memory, which counts bytes read and bytes written.
    copy_gigabytes_per_second: Option<f64>,
    rows: Vec<Measurement>,
}

/// The medians of one measurement.
#[derive(serde::Serialize)]
struct Measurement {
    batch: u32,
    prefill_tokens_per_second: f64,
    decode_step_milliseconds: f64,
    decode_tokens_per_second: f64,
    /// The weights and the KV cache that a step reads, divided by its time. GPUs only.
    decode_gigabytes_per_second: Option<f64>,
    /// The same, as a share of the copy's speed.
    decode_bandwidth_share: Option<f64>,
}

pub fn run(args: Args, _config: Option<&Path>) -> anyhow::Result<()> {
    let mut engine = open(&args)?;
    let info = engine.info();
    let chunk = args.prefill_chunk.unwrap_or(if info.backend == BackendKind::Cpu { CPU_CHUNK } else { GPU_CHUNK });
    let copy = engine.copy_bandwidth();
    let mut rows = Vec::new();
    for &batch in &args.batch {
        let runs = (0..=args.repeat).map(|_| measure(&mut *engine, &args, chunk, batch)).collect::<anyhow::Result<Vec<_>>>()?;
        let median = |f: &dyn Fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = runs[1..].iter().map(f).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (prefill, step) = (median(&|r| r.0), median(&|r| r.1));
        let read = (info.backend != BackendKind::Cpu).then(|| step_bytes(engine.spec(), &info, &args, batch) / step);
        rows.push(Measurement {
            batch,
            prefill_tokens_per_second: f64::from(args.prompt) / prefill,
            decode_step_milliseconds: step * 1e3,
            decode_tokens_per_second: f64::from(batch) / step,
            decode_gigabytes_per_second: read.map(|read| read / 1e9),
            decode_bandwidth_share: read.zip(copy).map(|(read, copy)| read / copy),
        });
    }
    let report = Report {
        model: engine.spec().name.clone(),
        backend: info.backend.name(),
        device: info.device,
        prompt: args.prompt,
        generated: args.generate,
        prefill_chunk: chunk,
        weight_bytes: info.weight_bytes,
        load_gigabytes_per_second: info.load_bandwidth.map(|bytes| bytes / 1e9),
        copy_gigabytes_per_second: copy.map(|bytes| bytes / 1e9),
        rows,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?)
    } else {
        print(&report)
    }
    Ok(())
}

fn open(args: &Args) -> anyhow::Result<Box<dyn Engine>> {
    let most = args.batch.iter().copied().max().unwrap_or(1);
    let blocks = (args.prompt + args.generate).div_ceil(BLOCK);
    let weights = Weights::load(Arc::new(GgufFile::open(&args.model)?))?;
    let options = EngineOptions {
        threads: args.threads,
        device: args.device,
        context: (blocks * BLOCK) as usize,
        kv_tokens: (blocks * BLOCK * most) as usize,
        block_size: BLOCK as usize,
        max_slots: most as usize,
        max_batch_tokens: args.prefill_chunk.unwrap_or(GPU_CHUNK).max(most) as usize,
        ..EngineOptions::default()
    };
    engine::open(weights, &options, backend(args.backend)).with_context(|| format!("--backend {}", args.backend.name()))
}

fn print(report: &Report) {
    let Report { model, backend, device, weight_bytes, .. } = report;
    println!("{model}, {backend} backend on {device}, {:.1} MB of weights", *weight_bytes as f64 / 1e6);
    println!("prompts of {} tokens in chunks of {}, then {} decode steps", report.prompt, report.prefill_chunk, report.generated);
    if let Some(load) = report.load_gigabytes_per_second {
        println!("loaded at {load:.1} GB/s");
    }
    if let Some(copy) = report.copy_gigabytes_per_second {
        println!("a copy within the device's memory: {copy:.0} GB/s");
    }
    println!("{:>6} {:>14} {:>14} {:>14} {:>14} {:>8}", "batch", "prefill tok/s", "decode ms", "decode tok/s", "decode GB/s", "of copy");
    let dash = || "-".to_owned();
    for r in &report.rows {
        let (p, ms, d) = (r.prefill_tokens_per_second, r.decode_step_milliseconds, r.decode_tokens_per_second);
        let read = r.decode_gigabytes_per_second.map_or_else(dash, |read| format!("{read:.0}"));
        let share = r.decode_bandwidth_share.map_or_else(dash, |share| format!("{:.1} %", share * 100.0));
        println!("{:>6} {p:>14.1} {ms:>14.4} {d:>14.1} {read:>14} {share:>8}", r.batch);
    }
}

/// Bytes that a decode step in the middle of the answer reads: the weights, and as many float16 keys and values as each layer attends to.
fn step_bytes(spec: &ModelSpec, info: &EngineInfo, args: &Args, batch: u32) -> f64 {
    let context = (args.prompt + args.generate / 2) as usize;
    let of_layer = |layer: &LayerSpec| {
        let kept = layer.cached().map_or(0, |kept| kept.heads * (kept.key + kept.value));
        let window = layer.attention().and_then(|attention| attention.window);
        2 * kept * window.map_or(context, |window| window.min(context))
    };
    let kept: usize = spec.layers.iter().map(of_layer).sum();
    info.step_bytes as f64 + kept as f64 * f64::from(batch)
}

/// Keeps as many steps in flight as the engine allows.
#[derive(Default)]
struct Pipeline {
    in_flight: VecDeque<StepId>,
    out: StepOutput,
}

impl Pipeline {
    fn submit(&mut self, engine: &mut dyn Engine, batch: &Batch) -> anyhow::Result<()> {
        self.in_flight.push_back(engine.submit(batch)?);
        let left = engine.max_in_flight().saturating_sub(1);
        self.collect(engine, left)
    }

    /// Collects all but the last `left` steps.
    fn collect(&mut self, engine: &mut dyn Engine, left: usize) -> anyhow::Result<()> {
        while self.in_flight.len() > left {
            let Some(step) = self.in_flight.pop_front() else { break };
            engine.collect(step, &mut self.out)?;
        }
        Ok(())
    }
}

/// Seconds to prefill one prompt (the median of the batch), and seconds per decode step of `batch` sequences (the mean of all steps).
fn measure(engine: &mut dyn Engine, args: &Args, chunk: u32, batch: u32) -> anyhow::Result<(f64, f64)> {
    let vocab = engine.spec().vocab_size as u32;
    let (mut pipeline, mut tables) = (Pipeline::default(), Tables::new(engine.kv_capacity(), batch as usize));
    let params = Arc::new(SamplingParams::greedy());
    let mut prefill = Vec::new();
    for sequence in 0..batch {
        let ids: Vec<u32> = (0..args.prompt).map(|i| (i * 7919 + sequence * 104_729 + 17) % vocab).collect();
        let start = Instant::now();
        for first in (0..args.prompt).step_by(chunk as usize) {
            let end = args.prompt.min(first + chunk);
            let mut step = rows(&[sequence], first..end);
            step.inputs = ids[first as usize..end as usize].iter().map(|&id| Input::Token(id)).collect();
            if end < args.prompt {
                step.sampled_rows.clear();
            }
            if first == 0 {
                step.init = vec![SlotInit { slot: sequence, params: params.clone(), prompt: [].into(), generated: Vec::new() }];
            }
            tables.place(&mut step, &[sequence])?;
            pipeline.submit(engine, &step)?;
        }
        pipeline.collect(engine, 0)?;
        prefill.push(start.elapsed().as_secs_f64());
        // the other sequences need what this one's windows have left
        tables.give_back(sequence, args.prompt as usize);
    }
    let sequences: Vec<u32> = (0..batch).collect();
    let start = Instant::now();
    for position in args.prompt..args.prompt + args.generate {
        let mut step = rows(&sequences, position..position + 1);
        tables.place(&mut step, &sequences)?;
        pipeline.submit(engine, &step)?;
    }
    pipeline.collect(engine, 0)?;
    let decode = start.elapsed().as_secs_f64() / f64::from(args.generate);
    prefill.sort_by(f64::total_cmp);
    Ok((prefill[prefill.len() / 2], decode))
}

/// A batch with the same positions of several sequences. Each sequence continues with the token that its engine slot sampled.
fn rows(sequences: &[u32], positions: std::ops::Range<u32>) -> Batch {
    let each = positions.len() as u32;
    let num = sequences.len();
    Batch {
        inputs: sequences.iter().flat_map(|&s| (0..each).map(move |_| Input::Sampled(s))).collect(),
        positions: sequences.iter().flat_map(|_| positions.clone()).collect(),
        cu_seqlens_q: (0..=num as u32).map(|i| i * each).collect(),
        context_lens: vec![positions.end; num],
        engine_slots: sequences.to_vec(),
        sampled_rows: (1..=num as u32).map(|i| i * each - 1).collect(),
        ..Batch::default()
    }
}
