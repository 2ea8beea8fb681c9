//! `penstock logits`: the raw logits at the last position of each prompt.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::names::file_of;
use crate::config::Backend;
use crate::engine::{self, Batch, Engine, EngineOptions, Input, SlotInit, StepOutput, Tables, VectorRequest};
use crate::gguf::GgufFile;
use crate::logits::SamplingParams;
use crate::model::Weights;
use crate::registry::backend;

/// Rows per prefill step.
const CHUNK: usize = 256;

#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  echo '[[1,2,3]]' > ids.json && penstock logits model.gguf --ids ids.json --out logits.npy")]
pub struct Args {
    /// A model on disk, or a GGUF file
    #[arg(value_name = "MODEL|FILE.gguf")]
    model: String,
    /// A JSON array of prompts, each an array of token ids
    #[arg(long, value_name = "FILE.json")]
    ids: PathBuf,
    /// Write each prompt's pooled vector instead, or its scores if the model ranks texts: float32 [prompts, length]
    #[arg(long)]
    vectors: bool,
    /// The output file: NumPy, float32 [prompts, vocabulary]
    #[arg(long, value_name = "FILE.npy")]
    out: PathBuf,
    /// Where to compute: cpu or cuda
    #[arg(long, default_value = "cpu", value_parser = PossibleValuesParser::new(["cpu", "cuda"]).try_map(|name| name.parse::<Backend>()))]
    backend: Backend,
    /// Index of the GPU
    #[arg(long, default_value_t = 0)]
    device: u32,
}

pub fn run(args: Args, config: Option<&Path>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.ids).with_context(|| format!("cannot read {}", args.ids.display()))?;
    let prompts: Vec<Vec<u32>> =
        serde_json::from_str(&text).with_context(|| format!("{}: expected an array of arrays of token ids", args.ids.display()))?;
    ensure!(
        !prompts.is_empty() && prompts.iter().all(|p| !p.is_empty()),
        "{}: expected at least one prompt, each with at least one id",
        args.ids.display()
    );
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    let mut engine = open(&args, &file_of(config, &args.model)?, longest)?;
    let vocab = engine.spec().vocab_size;
    if let Some(id) = prompts.iter().flatten().find(|&&id| id as usize >= vocab) {
        bail!("{}: id {id} is not in the vocabulary, which has {vocab} tokens", args.ids.display());
    }
    let rows = prompts.iter().map(|p| last_row(&mut *engine, p, args.vectors)).collect::<Result<Vec<_>, _>>()?;
    write_npy(&args.out, &rows, rows.first().map_or(0, Vec::len)).with_context(|| format!("cannot write {}", args.out.display()))
}

fn open(args: &Args, file: &Path, context: usize) -> anyhow::Result<Box<dyn Engine>> {
    let weights = Weights::load(Arc::new(GgufFile::open(file)?))?;
    let device = args.device;
    let max_batch_tokens = if weights.spec.arch.bidirectional { context } else { CHUNK };
    ensure!(args.vectors || !weights.spec.arch.bidirectional, "{}: the model gives vectors, not logits: add --vectors", file.display());
    let options = EngineOptions { device, context, kv_tokens: context, max_slots: 1, max_batch_tokens, ..EngineOptions::default() };
    engine::open(weights, &options, backend(args.backend)).with_context(|| format!("--backend {}", args.backend.name()))
}

/// The logits behind a prompt, or its vector.
fn last_row(engine: &mut dyn Engine, prompt: &[u32], vector: bool) -> anyhow::Result<Vec<f32>> {
    let (pooling, chunk_len) = (engine.spec().pooling, if engine.spec().arch.bidirectional { prompt.len() } else { CHUNK });
    let capacity = engine.kv_capacity();
    let params = Arc::new(SamplingParams::greedy());
    let (mut out, mut tables) = (StepOutput::default(), Tables::new(capacity.clone(), 1));
    for (i, chunk) in prompt.chunks(chunk_len).enumerate() {
        let start = i * chunk_len;
        let context = start + chunk.len();
        let complete = context == prompt.len();
        let init = SlotInit { slot: 0, params: params.clone(), prompt: prompt.into(), generated: Vec::new() };
        let mut batch = Batch {
            inputs: chunk.iter().map(|&id| Input::Token(id)).collect(),
            positions: (start as u32..context as u32).collect(),
            cu_seqlens_q: vec![0, chunk.len() as u32],
            context_lens: vec![context as u32],
            engine_slots: vec![0],
            state_slots: if capacity.has_state() { vec![0] } else { Vec::new() },
            sampled_rows: if complete && !vector { vec![chunk.len() as u32 - 1] } else { Vec::new() },
            vectors: if vector { vec![Some(VectorRequest { pooling, complete })] } else { Vec::new() },
            init: if i == 0 { vec![init] } else { Vec::new() },
            want_logits: !vector,
            ..Batch::default()
        };
        tables.place(&mut batch, &[0])?;
        let step = engine.submit(&batch)?;
        engine.collect(step, &mut out)?;
    }
    Ok(if vector { out.vectors.swap_remove(0) } else { out.logits.swap_remove(0) })
}

/// NumPy's format 1.0: magic, version, header length, a Python literal padded to 64 bytes, then the data.
fn write_npy(path: &Path, rows: &[Vec<f32>], columns: usize) -> std::io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {columns}), }}", rows.len());
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for row in rows {
        file.write_all(bytemuck::cast_slice(row))?;
    }
    file.flush()
}
