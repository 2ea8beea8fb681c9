//! Compares picture encoders, and language models with their rows, with a reference that shares no line with ours.

use super::testing::{open, options};
use super::{CpuEncoder, CpuOptions, simd};
use crate::picture_testing::{apart, difference, divergence, encode, encoder_weights, last_logits, only, prompt, row_difference, sizes};
use crate::{Encoder, Engine, Picture};
use fixtures::vision::{Chunk, VisionModel, picture, vision_models};

/// The largest difference of a row's float, in the row's root mean square.
const ROW_BOUND: f64 = 1e-4;
/// The largest difference of a logit, in standard deviations.
const LOGIT_BOUND: f64 = 2e-3;
/// Gemma 4 magnifies the reference's own rounding.
const ROUGH: (&str, f64) = ("gemma4", 5e-2);

fn encoder(model: &VisionModel) -> CpuEncoder {
    CpuEncoder::with_kernels(encoder_weights(model), 2, simd::dispatch::available()[0])
        .unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

#[test]
fn pictures_become_the_rows_of_the_reference() {
    let mut wrong = Vec::new();
    for model in only(vision_models()) {
        let mut encoder = encoder(&model);
        let (mut worst, mut count) = (0f64, 0);
        for case in &model.cases {
            let Some(rows) = encode(&mut encoder, case) else { continue };
            let chunks = case.chunks.iter().filter_map(|chunk| if let Chunk::Picture(rows) = chunk { Some(rows) } else { None });
            for (found, expected) in rows.iter().zip(chunks) {
                assert_eq!(found.len() % expected.rows, 0, "{}: {} floats for {} rows", model.name, found.len(), expected.rows);
                let difference = row_difference(found, expected);
                worst = if difference.is_nan() { f64::NAN } else { worst.max(difference) };
                count += 1;
            }
        }
        println!("{:10} {count} pictures, rows {worst:.1e}", model.name);
        if worst.is_nan() || worst > ROW_BOUND {
            wrong.push(format!("{}: {worst:.1e}", model.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

#[test]
fn language_models_read_the_rows_as_the_reference_does() {
    let mut wrong = Vec::new();
    for model in only(vision_models()).into_iter().filter(VisionModel::has_logits) {
        let mut encoder = encoder(&model);
        let options = CpuOptions { context: 1024, num_blocks: 32 * 16, max_batch_tokens: 1024, ..options() };
        let mut engine = match open(&model.language_model(), &options, simd::dispatch::available()[0]) {
            Ok(engine) => engine,
            Err(error) => {
                wrong.push(format!("{}: {error}", model.name));
                continue;
            }
        };
        let (mut worst, mut count) = (0f64, 0);
        for case in &model.cases {
            let Some(rows) = encode(&mut encoder, case) else { continue };
            let difference = difference(&last_logits(&mut engine, case, &rows), &case.logits);
            worst = if difference.is_nan() { f64::NAN } else { worst.max(difference) };
            count += 1;
        }
        println!("{:10} {count} prompts, logits {worst:.1e}", model.name);
        let bound = if model.name == ROUGH.0 { ROUGH.1 } else { LOGIT_BOUND };
        if worst.is_nan() || worst > bound {
            wrong.push(format!("{}: {worst:.1e}", model.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(", "));
}

/// What rounding does to the models that a GPU is compared with: little, so that a comparison can find a fault.
#[test]
fn calm_models_do_not_magnify_what_is_rounded() {
    for model in vision_models().into_iter().filter(|model| model.name == ROUGH.0) {
        let mut encoder = encoder(&model);
        let options = CpuOptions { context: 1024, num_blocks: 32 * 16, max_batch_tokens: 1024, ..options() };
        let files = [model.language_model(), model.calm_language_model()];
        let mut engines = files.map(|file| open(&file, &options, simd::dispatch::available()[0]).unwrap());
        let mut worst = [0f64; 2];
        for size in sizes(encoder.spec()) {
            let rows = encoder.encode(&[Picture { width: size[0], height: size[1], rgb: &picture(size) }]).unwrap();
            let moved: Vec<f32> = rows[0].iter().enumerate().map(|(i, x)| x * (1.0 + 1e-3 * (i as f32).sin())).collect();
            assert!(apart(&moved, &rows[0]) < 1e-2, "no more than a GPU moves them");
            for (engine, worst) in engines.iter_mut().zip(&mut worst) {
                let case = prompt(engine.spec(), encoder.spec(), size);
                let [before, after] = [&rows, &vec![moved.clone()]].map(|rows| last_logits(engine, &case, rows));
                *worst = worst.max(divergence(&before, &after));
            }
        }
        assert!(worst[0] > 1.0 && worst[1] < 1e-4, "{}: {worst:?}", model.name);
    }
}
