//! Compares every architecture on the GPU with the CPU, which is within the bound of the reference (`engine/cpu/architecture_tests.rs`).

use std::path::Path;
use std::sync::Arc;

use crate::backends::{divergence, gpu};
use engine::{BackendKind, Batch, Engine, EngineOptions, Input, SlotInit, StepOutput, VectorRequest};
use fixtures::architectures::{Architecture, architectures};
use gguf::GgufFile;
use logits::SamplingParams;
use model::{Pooling, Weights};

/// Largest divergence of the next token's distribution from the CPU's [nats]. The GPU rounds the inputs of products to float16.
const BOUND: f64 = 1e-3;

fn open(path: &Path, backend: BackendKind) -> Result<(Box<dyn Engine>, Weights), String> {
    let weights = || Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let options = EngineOptions {
        context: 256,
        kv_tokens: 512,
        max_slots: 2,
        max_batch_tokens: 256,
        state_slots: 2,
        threads: 2,
        ..EngineOptions::default()
    };
    let engine = engine::open(weights(), &options, Some(backend)).map_err(|error| error.to_string())?;
    Ok((engine, weights()))
}

/// Rows `from..to` of a prompt in blocks 0 to 7. The last row may be sampled.
fn batch(prompt: &[u32], from: usize, to: usize, state: bool) -> Batch {
    Batch {
        inputs: prompt[from..to].iter().map(|&id| Input::Token(id)).collect(),
        positions: (from as u32..to as u32).collect(),
        cu_seqlens_q: vec![0, (to - from) as u32],
        context_lens: vec![to as u32],
        slot_mapping: (from as u32..to as u32).collect(),
        block_tables: (0..8).collect(),
        max_blocks: 8,
        sequence_slots: vec![0],
        state_slots: if state { vec![0] } else { Vec::new() },
        init: match from {
            0 => vec![SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: prompt.into(), generated: Vec::new() }],
            _ => Vec::new(),
        },
        ..Batch::default()
    }
}

/// The logits after a prompt that is computed in chunks of at most `chunk` rows.
fn last_logits(engine: &mut dyn Engine, prompt: &[u32], chunk: usize, state: bool) -> Vec<f32> {
    let mut out = StepOutput::default();
    for from in (0..prompt.len()).step_by(chunk) {
        let to = prompt.len().min(from + chunk);
        let mut batch = batch(prompt, from, to, state);
        if to == prompt.len() {
            (batch.sampled_rows, batch.want_logits) = (vec![(to - from) as u32 - 1], true);
        }
        let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
        engine.collect(step, &mut out).unwrap();
    }
    out.logits.remove(0)
}

fn vector(engine: &mut dyn Engine, prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let mut out = StepOutput::default();
    let vectors = vec![Some(VectorRequest { pooling, complete: true })];
    let batch = Batch { vectors, ..batch(prompt, 0, prompt.len(), false) };
    let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
    engine.collect(step, &mut out).unwrap();
    out.vectors.remove(0)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The worst divergence over all prompts, with that prompt's number.
fn check(model: &Architecture, prompts: &[Vec<u32>], folder: &Path) -> Result<(f64, usize), String> {
    let path = model.write(folder);
    let mut exact = open(&path, BackendKind::Cpu)?.0;
    let (mut engine, weights) = open(&path, BackendKind::Cuda)?;
    let state = weights.spec.is_recurrent();
    let mut worst = (0f64, 0);
    for (i, prompt) in prompts.iter().enumerate() {
        if !model.vectors.is_empty() {
            if weights.spec.pooling == Pooling::Rank {
                let [exact, got] = [&mut *exact, &mut *engine].map(|engine| vector(engine, prompt, Pooling::Rank)[0]);
                let distance = f64::from((exact - got).abs());
                worst = if distance > worst.0 || distance.is_nan() { (distance, i) } else { worst };
                continue;
            }
            let [exact, got] = [&mut *exact, &mut *engine].map(|engine| vector(engine, prompt, weights.spec.pooling));
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let distance = 1.0 - dot(&exact, &got) / (dot(&exact, &exact) * dot(&got, &got)).sqrt();
            worst = if distance > worst.0 || distance.is_nan() { (distance, i) } else { worst };
            continue;
        }
        let whole = last_logits(&mut *engine, prompt, prompt.len(), state);
        for chunk in [1, 13] {
            let got = last_logits(&mut *engine, prompt, chunk, state);
            if bits(&got) != bits(&whole) {
                let divergence = divergence(&whole, &got);
                return Err(format!("other bits in chunks of {chunk} for {} ids (divergence {divergence:.1e})", prompt.len()));
            }
        }
        let expected = last_logits(&mut *exact, prompt, prompt.len(), state);
        let divergence = divergence(&expected, &whole);
        if divergence > worst.0 || divergence.is_nan() {
            worst = (divergence, i);
        }
    }
    if worst.0 <= BOUND { Ok(worst) } else { Err(format!("diverges by {:.1e} at prompt {}", worst.0, worst.1)) }
}

#[test]
#[ignore = "needs a GPU"]
fn every_architecture_agrees_with_the_cpu_on_the_gpu() {
    let _gpu = gpu();
    let (prompts, models) = architectures();
    let only = std::env::var("PENSTOCK_TEST_ARCHITECTURE").ok();
    let folder = tempfile::tempdir().unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for model in &models {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|name| name == model.name)) {
            continue;
        }
        count += 1;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(model, &prompts, folder.path())));
        match result.unwrap_or_else(|_| Err("panicked".into())) {
            Ok((worst, prompt)) => println!("ok    {:24} {worst:.1e} (prompt {prompt})", model.name),
            Err(error) => {
                println!("wrong {:24} {error}", model.name);
                wrong.push(format!("{}: {error}", model.name));
            }
        }
    }
    assert!(count > 0, "PENSTOCK_TEST_ARCHITECTURE names no model");
    assert!(wrong.is_empty(), "{} of {count} models are wrong:\n{}", wrong.len(), wrong.join("\n"));
}
