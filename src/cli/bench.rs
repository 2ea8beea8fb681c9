//! `penstock bench`: an engine's speed without a server around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::engine::{Batch, Engine, Input, SlotInit, StepOutput, cpu};
use crate::gguf::GgufFile;
use crate::logits::SamplingParams;
use crate::model::Weights;

/// Of a prompt and of an answer: past it block numbers would wrap.
const MOST_TOKENS: i64 = 1 << 20;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  penstock bench --model model.gguf --prompt 256 --gen 128 --batch 1,8")]
pub struct Args {
    /// A GGUF model file
    #[arg(long, value_name = "FILE.gguf")]
    model: PathBuf,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    prompt: u32,
    /// Tokens to decode after it
    #[arg(long = "gen", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS))]
    generate: u32,
    /// Sequences that decode at once: one measurement each
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Vec<u32>,
    /// Runs of each measurement, after one that is not counted; medians are shown
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// CPU threads (0: one a physical core)
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One row of the result: medians.
#[derive(serde::Serialize)]
struct Measurement {
    batch: u32,
    prefill_tokens_per_second: f64,
    decode_step_milliseconds: f64,
    decode_tokens_per_second: f64,
}

pub fn run(args: Args, _config: Option<&Path>) -> anyhow::Result<()> {
    let most = args.batch.iter().copied().max().unwrap_or(1) as usize;
    let weights = Weights::load(Arc::new(GgufFile::open(&args.model)?))?;
    let blocks = (args.prompt + args.generate).div_ceil(BLOCK) as usize;
    let options = cpu::CpuOptions {
        threads: args.threads,
        num_blocks: blocks * most,
        block_size: BLOCK as usize,
        max_slots: most,
        max_batch_tokens: CHUNK.max(most),
    };
    let mut engine = cpu::open(weights, &options)?;
    let mut rows = Vec::new();
    for &batch in &args.batch {
        let mut runs = (0..=args.repeat).map(|_| measure(&mut *engine, &args, batch)).collect::<anyhow::Result<Vec<_>>>()?;
        runs.remove(0);
        let median = |f: &dyn Fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(f).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (prefill, step) = (median(&|r| r.0), median(&|r| r.1));
        rows.push(Measurement {
            batch,
            prefill_tokens_per_second: f64::from(args.prompt) / prefill,
            decode_step_milliseconds: step * 1e3,
            decode_tokens_per_second: f64::from(batch) / step,
        });
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("{:>6} {:>14} {:>14} {:>14}", "batch", "prefill tok/s", "decode ms", "decode tok/s");
    for r in rows {
        let (p, ms, d) = (r.prefill_tokens_per_second, r.decode_step_milliseconds, r.decode_tokens_per_second);
        println!("{:>6} {p:>14.1} {ms:>14.3} {d:>14.1}", r.batch);
    }
    Ok(())
}

const BLOCK: u32 = 32;
/// Rows of a prefill step.
const CHUNK: usize = 512;

/// Seconds to prefill one prompt, and seconds of a decode step with `batch` sequences (the mean over all steps).
fn measure(engine: &mut dyn Engine, args: &Args, batch: u32) -> anyhow::Result<(f64, f64)> {
    let vocab = engine.spec().vocab_size as u32;
    let blocks = (args.prompt + args.generate).div_ceil(BLOCK);
    let mut out = StepOutput::default();
    let params = Arc::new(SamplingParams::greedy());
    let mut prefill = Vec::new();
    for sequence in 0..batch {
        let ids: Vec<u32> = (0..args.prompt).map(|i| (i * 7919 + sequence * 104_729 + 17) % vocab).collect();
        let start = Instant::now();
        for first in (0..args.prompt).step_by(CHUNK) {
            let end = args.prompt.min(first + CHUNK as u32);
            let mut step = rows(&[sequence], first..end, blocks);
            step.inputs = ids[first as usize..end as usize].iter().map(|&id| Input::Token(id)).collect();
            step.sample = vec![end == args.prompt];
            if first == 0 {
                step.init = vec![SlotInit { slot: sequence, params: params.clone(), prompt: [].into(), generated: Vec::new() }];
            }
            let id = engine.submit(&step)?;
            engine.collect(id, &mut out)?;
        }
        prefill.push(start.elapsed().as_secs_f64());
    }
    let sequences: Vec<u32> = (0..batch).collect();
    let start = Instant::now();
    for position in args.prompt..args.prompt + args.generate {
        let id = engine.submit(&rows(&sequences, position..position + 1, blocks))?;
        engine.collect(id, &mut out)?;
    }
    prefill.sort_by(f64::total_cmp);
    Ok((prefill[prefill.len() / 2], start.elapsed().as_secs_f64() / f64::from(args.generate)))
}

/// The same positions of some sequences, each fed by what its slot sampled.
fn rows(sequences: &[u32], positions: std::ops::Range<u32>, blocks: u32) -> Batch {
    let each = positions.len() as u32;
    let num = sequences.len();
    Batch {
        inputs: sequences.iter().flat_map(|&s| (0..each).map(move |_| Input::Sampled(s))).collect(),
        positions: sequences.iter().flat_map(|_| positions.clone()).collect(),
        cu_seqlens_q: (0..=num as u32).map(|i| i * each).collect(),
        context_lens: vec![positions.end; num],
        slot_mapping: sequences.iter().flat_map(|&s| positions.clone().map(move |p| s * blocks * BLOCK + p)).collect(),
        block_tables: sequences.iter().flat_map(|&s| s * blocks..(s + 1) * blocks).collect(),
        max_blocks: blocks as usize,
        slots: sequences.to_vec(),
        sample: vec![true; num],
        init: Vec::new(),
        want_logits: false,
    }
}
