//! Compares picture encoders, and language models with their rows, with a reference that shares no line with ours: for the tests of all
//! backends.

use std::collections::HashMap;
use std::sync::Arc;

use crate::encoder::{Encoder, Picture};
use crate::{Batch, Engine, Input, SlotInit, StepOutput};
use fixtures::vision::{Case, Chunk, EVERY, PictureRows, VisionModel, checksum, picture};
use gguf::GgufFile;
use logits::SamplingParams;
use model::vision::Places;
use model::{ModelSpec, VisionSpec, VisionWeights};

/// Opens a model's encoder.
pub fn encoder_weights(model: &VisionModel) -> VisionWeights {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mmproj.gguf");
    model.encoder().write(&path).unwrap();
    VisionWeights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

/// The worst difference of what is known of a picture's rows, in the rows' root mean squares.
pub fn row_difference(found: &[f32], expected: &PictureRows) -> f64 {
    let width = found.len() / expected.rows;
    let mut worst = 0f64;
    let mut compare = |difference: f64, rms: f64| worst = if difference.is_nan() { f64::NAN } else { worst.max(difference / rms) };
    let rms = |row: usize| {
        let squares = found[row * width..][..width].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        (squares / width as f64).sqrt()
    };
    for (i, &float) in expected.kept.iter().enumerate() {
        compare((f64::from(found[i * EVERY]) - f64::from(float)).abs(), rms(i * EVERY / width));
    }
    for (found, float) in found.iter().zip(&expected.head) {
        compare((f64::from(*found) - f64::from(*float)).abs(), rms(0));
    }
    for (row, &[mean, _, norm]) in expected.statistics.iter().enumerate() {
        let floats = &found[row * width..][..width];
        compare((floats.iter().map(|&x| f64::from(x)).sum::<f64>() / width as f64 - f64::from(mean)).abs(), rms(row));
        compare((rms(row) * (width as f64).sqrt() - f64::from(norm)).abs() / (width as f64).sqrt(), rms(row));
    }
    worst
}

/// The pictures of a case that need not be resized, by the checksum of their pixels.
pub fn known_pictures(case: &Case) -> HashMap<u32, ([usize; 2], Vec<u8>)> {
    let of = |&size: &[usize; 2]| {
        let pixels = picture(size);
        (checksum(&pixels), (size, pixels))
    };
    case.pictures.iter().map(of).collect()
}

/// The rows of each picture chunk. None if a picture would have to be resized.
pub fn encode(encoder: &mut dyn Encoder, case: &Case) -> Option<Vec<Vec<f32>>> {
    let known = known_pictures(case);
    let chunks = case.chunks.iter().filter_map(|chunk| if let Chunk::Picture(rows) = chunk { Some(rows) } else { None });
    let pictures: Option<Vec<_>> = chunks.map(|chunk| known.get(&chunk.crc)).collect();
    let pictures = pictures?;
    let pictures: Vec<_> = pictures.iter().map(|([width, height], rgb)| Picture { width: *width, height: *height, rgb }).collect();
    Some(encoder.encode(&pictures).unwrap())
}

/// The families that `PENSTOCK_TEST_ARCHITECTURE` names, or all.
pub fn only(models: Vec<VisionModel>) -> Vec<VisionModel> {
    let only = std::env::var("PENSTOCK_TEST_ARCHITECTURE").ok();
    models.into_iter().filter(|model| only.as_ref().is_none_or(|only| only.split(',').any(|name| name == model.name))).collect()
}

/// The logits behind a prompt, in steps of whole chunks.
pub fn last_logits(engine: &mut dyn Engine, case: &Case, rows: &[Vec<f32>]) -> Vec<f32> {
    let is_whole = engine.spec().has_whole_pictures();
    let mut batch = Batch { sequence_slots: vec![0], want_logits: true, ..Batch::default() };
    let mut encoded = rows.iter();
    let width = engine.spec().embedding_width();
    for chunk in &case.chunks {
        match chunk {
            Chunk::Tokens { position, ids } => {
                batch.inputs.extend(ids.iter().map(|&id| Input::Token(id)));
                let positions = *position..*position + ids.len() as u32;
                batch.grid_positions.extend(positions.clone().map(|position| [position; 2]));
                batch.positions.extend(positions);
            }
            Chunk::Picture(expected) => {
                let rows = encoded.next().unwrap();
                let (first, count) = ((batch.embeddings.len() / width) as u32, expected.rows as u32);
                if is_whole {
                    batch.whole_runs.push((batch.inputs.len() as u32, count));
                }
                batch.embeddings.extend(rows);
                batch.inputs.extend((first..first + count).map(Input::Embedding));
                for row in 0..count {
                    let line = [expected.position + row; 3];
                    let [first, second, third] = expected.positions.get(row as usize).copied().unwrap_or(line);
                    batch.positions.push(first);
                    batch.grid_positions.push([second, third]);
                }
            }
        }
    }
    if engine.spec().rope_sections.is_none() {
        batch.grid_positions.clear();
    }
    let n = batch.inputs.len() as u32;
    batch.cu_seqlens_q = vec![0, n];
    batch.context_lens = vec![n];
    batch.slot_mapping = (0..n).collect();
    batch.max_blocks = (n as usize).div_ceil(32);
    batch.block_tables = (0..batch.max_blocks as u32).collect();
    batch.state_slots = if engine.spec().is_recurrent() { vec![0] } else { Vec::new() };
    batch.init = vec![SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: [].into(), generated: Vec::new() }];
    batch.sampled_rows = vec![n - 1];
    batch.num_logprobs = vec![None];
    let mut out = StepOutput::default();
    let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
    engine.collect(step, &mut out).unwrap();
    out.logits.remove(0)
}

/// The largest difference, in standard deviations of the expected row.
pub fn difference(got: &[f32], expected: &[f32]) -> f64 {
    let n = expected.len() as f64;
    let mean = expected.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let deviation = (expected.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let apart = got.iter().zip(expected).map(|(got, expected)| (f64::from(*got) - f64::from(*expected)).abs());
    if got.iter().any(|x| x.is_nan()) { f64::NAN } else { apart.fold(0.0, f64::max) / deviation }
}

/// The largest difference of two pictures' rows, in the root mean square of all.
pub fn apart(got: &[f32], expected: &[f32]) -> f64 {
    let squares: f64 = expected.iter().map(|&x| f64::from(x).powi(2)).sum();
    let rms = (squares / expected.len() as f64).sqrt();
    let most = got.iter().zip(expected).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs() / rms);
    if got.len() != expected.len() || got.iter().any(|x| !x.is_finite()) { f64::INFINITY } else { most.fold(0.0, f64::max) }
}

/// Sizes of pictures that an encoder takes: a small one and larger ones, or the only one.
pub fn sizes(spec: &VisionSpec) -> Vec<[usize; 2]> {
    let cell = spec.merge * spec.patch_size;
    match spec.family.places {
        Places::Learned => vec![[spec.image_size; 2]],
        _ => [[2, 2], [3, 1], [9, 5], [4, 12]].map(|[across, down]| [across * cell, down * cell]).to_vec(),
    }
}

/// Σ p · ln(p / q) of the softmax of two rows of logits. Infinite if some logit is not a number.
pub fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let normalised = |logits: &[f32]| -> Vec<f64> {
        let most = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - most).exp()).sum();
        logits.iter().map(|&x| f64::from(x - most) - sum.ln()).collect()
    };
    let (p, q) = (normalised(p), normalised(q));
    let sum: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// A prompt with a picture's rows between some tokens.
pub fn prompt(spec: &ModelSpec, vision: &VisionSpec, [width, height]: [usize; 2]) -> Case {
    let cell = vision.merge * vision.patch_size;
    let (across, down) = ((width / cell) as u32, (height / cell) as u32);
    let rows = vision.num_rows([height / vision.patch_size, width / vision.patch_size]);
    let (first, has_grid) = (9, spec.rope_sections.is_some());
    let place = |row: u32| [first, first + row / across, first + row % across];
    let next = if has_grid { first + across.max(down) } else { first + rows as u32 };
    let tokens = |position: u32, count: u32| Chunk::Tokens { position, ids: (position..position + count).map(|i| i * 7 % 300).collect() };
    let picture = PictureRows {
        position: first,
        rows,
        positions_used: next - first,
        width,
        height,
        crc: 0,
        positions: if has_grid { (0..rows as u32).map(place).collect() } else { Vec::new() },
        row_width: vision.row_width(),
        kept: Vec::new(),
        head: Vec::new(),
        statistics: Vec::new(),
    };
    let chunks = vec![tokens(0, first), Chunk::Picture(Box::new(picture)), tokens(next, 6)];
    Case { prompt: String::new(), pictures: Vec::new(), chunks, logits: Vec::new(), greedy: Vec::new(), next_position: next + 6 }
}
