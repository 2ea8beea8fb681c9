//! Compares every architecture with llama.cpp's logits, which share no line with ours.

use std::sync::Arc;

use super::testing::{open, options};
use super::{CpuEngine, CpuOptions, simd};
use crate::{Batch, CacheType, Engine, Input, SlotInit, StepOutput, VectorRequest};
use fixtures::architectures::{Architecture, architectures};
use logits::SamplingParams;

/// The largest difference of a logit, in standard deviations of the row.
const BOUND: f64 = 2e-3;

/// Models whose logits magnify the reference's own rounding: it looks GELU up in a table of half floats.
const ROUGH: &[&str] = &["gemma3n-dense", "gemma4-dense", "gemma4-moe"];
const ROUGH_BOUND: f64 = 8e-3;

/// The largest difference of a logit between a cache in float32 and one in fewer bits, in standard deviations of the row.
const PACKED_BOUNDS: [(CacheType, f64); 2] = [(CacheType::F16, 5e-3), (CacheType::Q8, 9e-2)];

/// Models that magnify what a cache rounds: an expert is chosen by scores that almost tie, or a state holds what attention wrote.
const PACKED_ROUGH: &[&str] = &["gemma4-moe", "jamba-dense"];
const PACKED_ROUGH_FACTOR: f64 = 8.0;

fn engine(model: &Architecture, cache_type: CacheType) -> Result<CpuEngine, String> {
    let options = CpuOptions { context: 256, num_blocks: 8 * 16, max_batch_tokens: 256, cache_type, ..options() };
    open(&model.build(), &options, simd::dispatch::available()[0])
}

/// The logits after a prompt that is computed in chunks of at most `chunk` rows.
fn last_logits(engine: &mut CpuEngine, prompt: &[u32], chunk: usize) -> Vec<f32> {
    let mut out = StepOutput::default();
    let init = SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: prompt.into(), generated: Vec::new() };
    let mut start = 0;
    for (i, rows) in prompt.chunks(chunk).enumerate() {
        let end = start + rows.len();
        let last = end == prompt.len();
        let batch = Batch {
            inputs: rows.iter().map(|&id| Input::Token(id)).collect(),
            positions: (start as u32..end as u32).collect(),
            cu_seqlens_q: vec![0, rows.len() as u32],
            context_lens: vec![end as u32],
            slot_mapping: (start as u32..end as u32).collect(),
            block_tables: (0..8).collect(),
            max_blocks: 8,
            sequence_slots: vec![0],
            state_slots: if engine.spec().is_recurrent() { vec![0] } else { Vec::new() },
            init: if i == 0 { vec![init.clone()] } else { Vec::new() },
            sampled_rows: if last { vec![rows.len() as u32 - 1] } else { Vec::new() },
            num_logprobs: if last { vec![None] } else { Vec::new() },
            want_logits: last,
            ..Batch::default()
        };
        let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
        engine.collect(step, &mut out).unwrap();
        start = end;
    }
    out.logits.remove(0)
}

/// The pooled vector of a prompt.
fn vector(engine: &mut CpuEngine, prompt: &[u32]) -> Vec<f32> {
    let (mut out, n) = (StepOutput::default(), prompt.len() as u32);
    let batch = Batch {
        inputs: prompt.iter().map(|&id| Input::Token(id)).collect(),
        positions: (0..n).collect(),
        cu_seqlens_q: vec![0, n],
        context_lens: vec![n],
        slot_mapping: (0..n).collect(),
        block_tables: (0..8).collect(),
        max_blocks: 8,
        sequence_slots: vec![0],
        init: vec![SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: prompt.into(), generated: Vec::new() }],
        vectors: vec![Some(VectorRequest { pooling: engine.spec().pooling, complete: true })],
        ..Batch::default()
    };
    let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
    engine.collect(step, &mut out).unwrap();
    out.vectors.remove(0)
}

/// The largest difference, in standard deviations of the expected row.
fn difference(got: &[f32], expected: &[f32]) -> f64 {
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let deviation = (expected.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let worst = |a: f64, (got, expected): (&f32, &f32)| if a.is_nan() { a } else { a.max((f64::from(*got) - f64::from(*expected)).abs()) };
    if got.iter().any(|x| x.is_nan()) { f64::NAN } else { got.iter().zip(expected).fold(0.0, worst) / deviation }
}

/// The worst difference over all prompts. Fails if the bits depend on how a prompt is cut into chunks.
fn check(engine: &mut CpuEngine, bound: f64, prompts: &[Vec<u32>], logits: &[Vec<f32>]) -> Result<f64, String> {
    let mut worst = 0f64;
    for (prompt, expected) in prompts.iter().zip(logits) {
        let whole = last_logits(engine, prompt, prompt.len());
        let difference = difference(&whole, expected);
        if difference.is_nan() || difference > bound {
            return Err(format!("{} ids: differs by {difference:.1e} standard deviations, more than {bound:.1e}", prompt.len()));
        }
        worst = worst.max(difference);
        for chunk in [1, 13] {
            let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            if bits(&last_logits(engine, prompt, chunk)) != bits(&whole) {
                return Err(format!("{} ids: other bits in chunks of {chunk}", prompt.len()));
            }
        }
    }
    Ok(worst)
}

/// Compares all models with the bound. Prints the worst difference of each.
fn check_all(check: impl Fn(&Architecture, &[Vec<u32>]) -> Result<f64, String>) {
    let (prompts, models) = architectures();
    let only = std::env::var("PENSTOCK_TEST_ARCHITECTURE").ok();
    let mut wrong = Vec::new();
    let mut count = 0;
    for model in models.iter().filter(|model| !model.logits.is_empty()) {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|name| name == model.name)) {
            continue;
        }
        count += 1;
        let check = || check(model, &prompts);
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or_else(|_| Err("panicked".into())) {
            Ok(worst) => println!("{:24} {worst:.1e}", model.name),
            Err(error) => wrong.push(format!("{}: {error}", model.name)),
        }
    }
    assert!(count > 0, "PENSTOCK_TEST_ARCHITECTURE names no model");
    assert!(wrong.is_empty(), "{} of {count} models are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_architecture_has_the_logits_of_the_reference() {
    check_all(|model, prompts| {
        let bound = if ROUGH.contains(&&*model.name) { ROUGH_BOUND } else { BOUND };
        check(&mut engine(model, CacheType::F32)?, bound, prompts, &model.logits)
    });
}

#[test]
fn every_architecture_runs_with_a_cache_of_fewer_bits() {
    for (cache_type, bound) in PACKED_BOUNDS {
        println!("{cache_type}");
        check_all(|model, prompts| {
            let mut whole = engine(model, CacheType::F32)?;
            let logits: Vec<_> = prompts.iter().map(|prompt| last_logits(&mut whole, prompt, prompt.len())).collect();
            let bound = if PACKED_ROUGH.contains(&&*model.name) { PACKED_ROUGH_FACTOR * bound } else { bound };
            check(&mut engine(model, cache_type)?, bound, prompts, &logits)
        });
    }
}

#[test]
fn encoders_have_the_vectors_of_the_reference() {
    let (prompts, models) = architectures();
    let mut wrong = Vec::new();
    let encoders: Vec<_> = models.iter().filter(|model| !model.vectors.is_empty()).collect();
    assert_eq!(encoders.len(), 7);
    for model in encoders {
        let mut engine = match engine(model, CacheType::F32) {
            Ok(engine) => engine,
            Err(error) => {
                wrong.push(format!("{}: {error}", model.name));
                continue;
            }
        };
        for (prompt, expected) in prompts.iter().zip(&model.vectors) {
            let got = vector(&mut engine, prompt);
            assert_eq!(got.len(), expected.len(), "{}", model.name);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let cosine = dot(&got, expected) / (dot(&got, &got) * dot(expected, expected)).sqrt();
            let is_right = if got.len() == 1 { (got[0] - expected[0]).abs() < 1e-3 } else { cosine >= 0.99999 };
            if !is_right {
                wrong.push(format!("{} with {} ids: cosine {cosine}, {:?} for {:?}", model.name, prompt.len(), &got[..1], &expected[..1]));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
