//! Rows with three positions (M-RoPE) on a GPU: each section of a rotation has its own position, in prompts and in what follows them.

use std::sync::Arc;

use super::super::*;
use crate::{BlockTables, SlotInit};
use gguf::GgufFile;
use logits::SamplingParams;
use model::Arch;
use model::spec::RopeSections;
use model::testing::TinyModel;

const CONTEXT: usize = 128;
/// The rows of a picture: four rows of six, behind some text.
const PICTURE: std::ops::Range<u32> = 5..29;
const LENGTH: u32 = 40;

/// Models whose heads are finished by each of the three kernels: in parts of eight elements, by warps with a norm, and before general
/// attention.
fn models() -> [TinyModel; 3] {
    let of = |name: &str, head_dim| TinyModel { head_dim, optional: true, ..TinyModel::new(Arch::by_name(name).unwrap()) };
    [of("qwen2", 64), of("qwen3", 64), of("qwen2", 288)]
}

fn weights(tiny: &TinyModel, sections: Option<RopeSections>) -> Weights {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let key = format!("{}.rope.dimension_sections", tiny.arch.name);
    // any sections pair halves
    tiny.build().kv(&key, vec![1, 0, 0]).write(&path).unwrap();
    let mut weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
    weights.spec.rope_sections = sections;
    weights
}

fn open(weights: Weights, backend: BackendKind) -> Box<dyn Engine> {
    let sizes = EngineOptions { context: CONTEXT, kv_tokens: 1024, ..EngineOptions::default() };
    let options = EngineOptions { max_slots: 4, max_batch_tokens: 128, threads: 2, ..sizes };
    let mut engine = crate::open(weights, &options, Some(backend)).unwrap();
    let num_blocks = engine.kv_capacity().num_blocks;
    engine.resize_cache(num_blocks).unwrap();
    engine
}

/// The three positions of row `i` behind a picture, on it and before it.
fn place(i: u32) -> [u32; 3] {
    let (first, end) = (PICTURE.start, PICTURE.end);
    match i {
        _ if i < first => [i; 3],
        _ if i < end => [first, first + (i - first) / 6, first + (i - first) % 6],
        _ => [i - end + first + 6; 3],
    }
}

/// How a step says its positions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// One position if the three are equal.
    Plain,
    /// From the batch's arrays, even if the device knows the row.
    Arrays,
    Grid,
}

/// Rows of sequences, each a run of (slot, rows). Slot 0 has a picture, and the others have text only.
fn batch(tables: &mut BlockTables, runs: &[(u32, std::ops::Range<u32>)], place: &dyn Fn(u32) -> [u32; 3], way: Way) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    let mut places = Vec::new();
    for (slot, rows) in runs {
        let begins = rows.start == 0;
        let is_decode = rows.start >= LENGTH;
        batch.inputs.extend(rows.clone().map(|i| if is_decode { Input::Sampled(*slot) } else { Input::Token((i * 31 + slot) % 300) }));
        places.extend(rows.clone().map(|i| if *slot == 0 { place(i) } else { [i; 3] }));
        batch.cu_seqlens_q.push(batch.inputs.len() as u32);
        batch.context_lens.push(rows.end);
        batch.sequence_slots.push(*slot);
        if rows.end >= LENGTH {
            batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
        }
        let init = SlotInit { slot: *slot, params: Arc::new(SamplingParams::greedy()), prompt: [].into(), generated: Vec::new() };
        batch.init.extend(begins.then_some(init));
    }
    batch.positions = places.iter().map(|at| at[0]).collect();
    if way == Way::Grid || places.iter().any(|at| at[1..] != [at[0]; 2]) {
        batch.grid_positions = places.iter().map(|&[_, second, third]| [second, third]).collect();
    }
    if way == Way::Arrays {
        batch.token_types = vec![0; places.len()];
    }
    let slots = batch.sequence_slots.clone();
    tables.place(&mut batch, &slots).unwrap();
    batch
}

fn run(engine: &mut dyn Engine, batch: &Batch) -> StepOutput {
    let (mut out, step) = (StepOutput::default(), engine.submit(batch).unwrap());
    engine.collect(step, &mut out).unwrap();
    out
}

/// The last logits of a prompt in chunks.
fn last_logits(engine: &mut dyn Engine, place: &dyn Fn(u32) -> [u32; 3], chunk: u32) -> Vec<f32> {
    let mut tables = BlockTables::new(engine.kv_capacity(), 4);
    let mut out = StepOutput::default();
    for from in (0..LENGTH).step_by(chunk as usize) {
        let rows = (0, from..LENGTH.min(from + chunk));
        out = run(engine, &Batch { want_logits: true, ..batch(&mut tables, &[rows], place, Way::Plain) });
    }
    out.logits.remove(0)
}

/// The ids of eight decode steps after a prompt with a picture, beside a sequence of text, and the logits of the last step.
fn generate(engine: &mut dyn Engine, way: Way) -> (Vec<Vec<crate::Sampled>>, Vec<Vec<u32>>) {
    let mut tables = BlockTables::new(engine.kv_capacity(), 4);
    let prompt = batch(&mut tables, &[(0, 0..LENGTH), (2, 0..LENGTH)], &place, Way::Plain);
    let mut ids = vec![run(engine, &prompt).sampled];
    for i in LENGTH..LENGTH + 8 {
        ids.push(run(engine, &batch(&mut tables, &[(0, i..i + 1), (2, i..i + 1)], &place, way)).sampled);
    }
    let i = LENGTH + 8;
    let last = batch(&mut tables, &[(0, i..i + 1), (2, i..i + 1)], &place, way);
    let out = run(engine, &Batch { want_logits: true, ..last });
    (ids, out.logits.iter().map(|row| bits(row)).collect())
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The Kullback-Leibler divergence of two rows of logits [nats].
fn divergence(exact: &[f32], got: &[f32]) -> f64 {
    let logs = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
        row.iter().map(|x| f64::from(x - most) - sum.ln()).collect::<Vec<_>>()
    };
    logs(exact).iter().zip(logs(got)).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn sections(tiny: &TinyModel, interleaved: bool) -> RopeSections {
    let pairs = tiny.head_dim / 2;
    RopeSections { pairs: [pairs - 2 * (pairs * 3 / 8), pairs * 3 / 8, pairs * 3 / 8], interleaved }
}

#[test]
#[ignore = "needs a GPU"]
fn rows_with_three_positions_agree_with_the_cpu_on_the_gpu() {
    for tiny in models() {
        for interleaved in [false, true] {
            let of = |backend| open(weights(&tiny, Some(sections(&tiny, interleaved))), backend);
            let what = format!("{} with heads of {}, interleaved: {interleaved}", tiny.name(), tiny.head_dim);
            let (mut exact, mut engine) = (of(BackendKind::Cpu), of(BackendKind::Cuda));
            let expected = last_logits(&mut *exact, &place, LENGTH);
            let whole = last_logits(&mut *engine, &place, LENGTH);
            let apart = divergence(&expected, &whole);
            assert!(apart < 1e-3, "{what}: {apart:.1e}");
            for chunk in [1, 7] {
                assert!(bits(&last_logits(&mut *engine, &place, chunk)) == bits(&whole), "{what}: chunks of {chunk}");
            }
            let as_text = last_logits(&mut *engine, &|i| [i; 3], LENGTH);
            assert!(divergence(&expected, &as_text) > 10.0 * apart, "{what}: positions do not matter");
        }
    }
}

/// As on the CPU: each section is rotated by its own position, and by no other.
#[test]
#[ignore = "needs a GPU"]
fn each_section_has_its_own_position_on_the_gpu() {
    let moved = |i: u32| i * 7 % (i + 1);
    for tiny in models() {
        let pairs = tiny.head_dim / 2;
        let of = |pairs: [usize; 3]| open(weights(&tiny, Some(RopeSections { pairs, interleaved: false })), BackendKind::Cuda);
        let expected = bits(&last_logits(&mut *of([pairs, 0, 0]), &|i| [moved(i), i, 0], LENGTH));
        for section in [1, 2] {
            let mut all = [0; 3];
            all[section] = pairs;
            let others = |i: u32| {
                let mut places = [i; 3];
                places[section] = moved(i);
                places
            };
            assert!(bits(&last_logits(&mut *of(all), &others, LENGTH)) == expected, "{} section {section}", tiny.name());
        }
        let text = |i: u32| [i; 3];
        let plain = bits(&last_logits(&mut *open(weights(&tiny, None), BackendKind::Cuda), &text, LENGTH));
        let in_sections = bits(&last_logits(&mut *of([8, 12, pairs - 20]), &text, LENGTH));
        assert!(plain == in_sections, "{}: text", tiny.name());
    }
}

/// A sequence's next position is not the number of its tokens. Its slot keeps the difference.
#[test]
#[ignore = "needs a GPU"]
fn decode_steps_behind_a_picture_go_on_at_its_position_on_the_gpu() {
    for tiny in models() {
        let of = |way| generate(&mut *open(weights(&tiny, Some(sections(&tiny, false))), BackendKind::Cuda), way);
        let slots = of(Way::Plain);
        for way in [Way::Arrays, Way::Grid] {
            let other = of(way);
            assert_eq!(other.0, slots.0, "{} {way:?}", tiny.name());
            assert!(other.1 == slots.1, "{} {way:?}", tiny.name());
        }
    }
}
