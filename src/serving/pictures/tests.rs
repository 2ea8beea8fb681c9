//! Compares prompts with pictures with a reference that shares no line with ours: chunks, pixels, rows, logits and greedy ids.

use std::path::Path;
use std::sync::Arc;

use engine::{BackendKind, BlockTables, Engine, EngineOptions, SlotInit, StepOutput};
use fixtures::vision::{self, Case, Chunk, EVERY, VisionModel, vision_models};
use gguf::GgufFile;
use images::{Cutting, Rgb};
use logits::SamplingParams;
use model::Weights;
use tokenizer::Tokenizer;

use super::*;

/// The largest difference of a row's float, in the row's root mean square.
const ROW_BOUND: f64 = 1e-4;
/// The largest difference of a logit, in standard deviations of all logits.
const LOGIT_BOUND: f64 = 2e-3;
/// Gemma 4 magnifies the reference's own rounding.
const ROUGH: (&str, f64) = ("gemma4", 5e-2);
/// A greedy id must be equal if the second best is this many standard deviations behind.
const CLEAR: f64 = 0.1;
/// More than any prompt has.
const CONTEXT: usize = 1024;

/// A language model with its encoder.
struct Opened {
    engine: Box<dyn Engine>,
    reader: PictureReader,
    tokenizer: Tokenizer,
}

fn open(model: &VisionModel, folder: &Path) -> Opened {
    let [language, mmproj] = ["gguf", "mmproj.gguf"].map(|end| folder.join(format!("{}.{end}", model.name)));
    model.language_model().write(&language).unwrap();
    model.encoder().write(&mmproj).unwrap();
    let file = Arc::new(GgufFile::open(&language).unwrap());
    let tokenizer = Tokenizer::open(&file).unwrap();
    let weights = Weights::load(file).unwrap();
    let reader = PictureReader::open(&mmproj, &weights.spec, &tokenizer, 2, (BackendKind::Cpu, 0)).unwrap().with_cutting(Cutting::LlamaCpp);
    let options = EngineOptions {
        context: CONTEXT,
        kv_tokens: CONTEXT,
        max_slots: 1,
        max_batch_tokens: CONTEXT,
        threads: 2,
        ..EngineOptions::default()
    };
    let engine = engine::open(weights, &options, Some(BackendKind::Cpu)).unwrap();
    Opened { engine, reader, tokenizer }
}

/// The logits behind a prompt, in one step.
fn last_logits(engine: &mut dyn Engine, parts: &[PromptPart]) -> Vec<f32> {
    let prompt = prompt_batch(&items(parts));
    let count = prompt.inputs.len() as u32;
    let init = SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: [].into(), generated: Vec::new() };
    let mut batch = engine::Batch {
        cu_seqlens_q: vec![0, count],
        context_lens: vec![count],
        sequence_slots: vec![0],
        sampled_rows: vec![count - 1],
        init: vec![init],
        want_logits: true,
        ..prompt
    };
    BlockTables::new(engine.kv_capacity(), 1).place(&mut batch, &[0]).unwrap();
    let mut out = StepOutput::default();
    let step = engine.submit(&batch).unwrap();
    engine.collect(step, &mut out).unwrap();
    out.logits.remove(0)
}

/// Compares the chunks. Returns the worst difference of the rows, in root mean squares.
fn compare_chunks(parts: &[PromptPart], case: &Case) -> Result<f64, String> {
    if parts.len() != case.chunks.len() {
        return Err(format!("{} chunks, expected {}", parts.len(), case.chunks.len()));
    }
    let (mut worst, mut position) = (0f64, 0);
    for (i, (part, chunk)) in parts.iter().zip(&case.chunks).enumerate() {
        match (part, chunk) {
            (PromptPart::Tokens(found), Chunk::Tokens { position: due, ids }) => {
                if found != ids || position != *due {
                    return Err(format!("chunk {i}: {found:?} at {position}, expected {ids:?} at {due}"));
                }
                position += found.len() as u32;
            }
            (PromptPart::Rows(found), Chunk::Picture(expected)) => {
                let run = &found.run;
                let shape = (found.width as usize, found.height as usize, run.num_rows, found.crc, position);
                let due = (expected.width, expected.height, expected.rows, expected.crc, expected.position);
                if shape != due {
                    return Err(format!("chunk {i}: {shape:x?}, expected {due:x?}"));
                }
                position += match run.layout {
                    Layout::Line => run.num_rows as u32,
                    Layout::Grid { height, width } => {
                        let place = |row: u32| [position, position + row / width, position + row % width];
                        let places: Vec<_> = (0..run.num_rows as u32).map(place).collect();
                        if places != expected.positions {
                            return Err(format!("chunk {i}: positions {places:?}, expected {:?}", expected.positions));
                        }
                        height.max(width)
                    }
                };
                worst = larger(worst, row_difference(&run.embeddings, expected));
            }
            _ => return Err(format!("chunk {i} is of another kind")),
        }
    }
    if position != case.next_position {
        return Err(format!("the next position is {position}, expected {}", case.next_position));
    }
    Ok(worst)
}

fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// The worst difference of what is known of a picture's rows, in the rows' root mean squares.
fn row_difference(found: &[f32], expected: &vision::PictureRows) -> f64 {
    let width = found.len() / expected.rows;
    let rms = |row: usize| {
        let squares = found[row * width..][..width].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        (squares / width as f64).sqrt()
    };
    let apart = |a: f32, b: f32| (f64::from(a) - f64::from(b)).abs();
    let kept = expected.kept.iter().enumerate().map(|(i, &float)| apart(found[i * EVERY], float) / rms(i * EVERY / width));
    let head = expected.head.iter().zip(found).map(|(&float, &found)| apart(found, float) / rms(0));
    let statistics = expected.statistics.iter().enumerate().map(|(row, &[mean, _, norm])| {
        let own = found[row * width..][..width].iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64;
        let root = (width as f64).sqrt();
        ((own - f64::from(mean)).abs().max((rms(row) - f64::from(norm) / root).abs())) / rms(row)
    });
    kept.chain(head).chain(statistics).fold(0.0, larger)
}

/// The largest difference, in standard deviations of the expected logits, and that deviation.
fn logit_difference(found: &[f32], expected: &[f32]) -> (f64, f64) {
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let deviation = (expected.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let apart = found.iter().zip(expected).map(|(found, expected)| (f64::from(*found) - f64::from(*expected)).abs());
    (apart.fold(0.0, larger) / deviation, deviation)
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// The worst differences of a case's rows and logits.
fn check(opened: &mut Opened, case: &Case) -> Result<[f64; 2], String> {
    let picture =
        |&[width, height]: &[usize; 2]| Rgb { width: width as u32, height: height as u32, pixels: vision::picture([width, height]) };
    let pictures: Vec<Rgb> = case.pictures.iter().map(picture).collect();
    let mut parts = opened.reader.read(&case.prompt, &pictures, &opened.tokenizer).map_err(|error| format!("{error:#}"))?;
    let rows = compare_chunks(&parts, case)?;
    if case.logits.is_empty() {
        return Ok([rows, 0.0]);
    }
    let mut logits = last_logits(&mut *opened.engine, &parts);
    let (worst, deviation) = logit_difference(&logits, &case.logits);
    for (step, &(id, _, margin)) in case.greedy.iter().enumerate() {
        let found = best(&logits);
        if found != id {
            if f64::from(margin) > CLEAR * deviation {
                return Err(format!("greedy step {step}: {found}, expected {id} by {margin}; rows {rows:.1e}, logits {worst:.1e}"));
            }
            break;
        }
        parts.push(PromptPart::Tokens(vec![id]));
        logits = last_logits(&mut *opened.engine, &parts);
    }
    Ok([rows, worst])
}

#[test]
fn every_family_has_the_chunks_rows_and_logits_of_the_reference() {
    let only = std::env::var("PENSTOCK_TEST_ARCHITECTURE").ok();
    let folder = tempfile::tempdir().unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for model in vision_models() {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|name| name == model.name)) {
            continue;
        }
        count += 1;
        let bound = if model.name == ROUGH.0 { ROUGH.1 } else { LOGIT_BOUND };
        let checked = std::panic::catch_unwind(|| {
            let mut opened = open(&model, folder.path());
            model.cases.iter().map(|case| check(&mut opened, case)).collect::<Vec<_>>()
        });
        let results = checked.unwrap_or_else(|_| vec![Err("panicked".to_owned())]);
        let mut worst = [0f64; 2];
        for (i, result) in results.into_iter().enumerate() {
            match result {
                Ok([rows, logits]) => worst = [larger(worst[0], rows), larger(worst[1], logits)],
                Err(error) => wrong.push(format!("{}, case {i}: {error}", model.name)),
            }
        }
        println!("{:10} rows {:.1e}, logits {:.1e}", model.name, worst[0], worst[1]);
        if !(worst[0] <= ROW_BOUND && worst[1] <= bound) {
            wrong.push(format!("{}: rows {:.1e}, logits {:.1e}", model.name, worst[0], worst[1]));
        }
    }
    assert!(count > 0, "PENSTOCK_TEST_ARCHITECTURE names no family");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_picture_whose_rows_see_each_other_must_fit_a_step() {
    let folder = tempfile::tempdir().unwrap();
    for (name, is_whole) in [("gemma3", true), ("qwen2vl", false)] {
        let model = vision_models().into_iter().find(|model| model.name == name).unwrap();
        let mut opened = open(&model, folder.path());
        let rules = Arc::get_mut(&mut opened.reader.rules).unwrap();
        let (size, whole) = (112, 16);
        rules.limit_steps(whole - 1);
        let refused = rules.plan((size, size), 0).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(refused.contains("16 rows, which one step must hold, and a step holds 15"), is_whole, "{name}: {refused}");
        rules.limit_steps(whole);
        assert!(rules.plan((size, size), 0).is_ok(), "{name}");
    }
}
