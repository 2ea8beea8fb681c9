//! Tests sampling on both backends: log-probabilities and masks.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use engine::{Batch, Engine, Input, Masks, Sampled, SlotInit, StepOutput};
use logits::{MAX_LOGPROBS, SamplingParams, mask_words};
use model::Arch;
use model::testing::PLAIN;
use model::testing::TinyModel;

use crate::backends::{Factory, gpu, on_cpu, on_gpu};

/// Not a multiple of 32, so that a mask's last word is only partly used.
const VOCAB: u32 = 331;
const BLOCKS: u32 = 4;
const STEPS: u32 = 24;

/// The sampling parameters of each sequence, and the number of log-probabilities that it requests.
fn sequences() -> Vec<(SamplingParams, Option<u8>)> {
    let warm = |seed| SamplingParams { temperature: 0.9, seed, ..SamplingParams::greedy() };
    vec![
        (SamplingParams::greedy(), Some(5)),
        (warm(3), None),
        (SamplingParams { top_p: 0.9, logit_bias: vec![(7, 4.0), (9, -3.0)], repetition_penalty: 1.3, ..warm(4) }, Some(0)),
        (SamplingParams { top_k: 40, presence_penalty: 0.5, ..warm(5) }, Some(MAX_LOGPROBS as u8)),
        (SamplingParams { min_p: 0.02, ..warm(6) }, None),
    ]
}

/// The mask for a step and a sequence, as a predicate on ids. `None` allows every id.
type Mask<'a> = &'a dyn Fn(u32, u32) -> Option<Box<dyn Fn(u32) -> bool>>;

struct Ask<'a> {
    logits: bool,
    logprobs: bool,
    mask: Mask<'a>,
}

const FREE: Mask = &|_, _| None;

fn batch(step: u32, ask: &Ask) -> (Batch, Masks) {
    let mut masks = Masks::default();
    let mut batch = Batch { cu_seqlens_q: vec![0], max_blocks: BLOCKS as usize, want_logits: ask.logits, ..Batch::default() };
    for (i, (params, num_logprobs)) in (0..).zip(sequences()) {
        let prompt: Vec<u32> = (0..5 + 17 * i).map(|at| (at * 31 + i * 7) % VOCAB).collect();
        let len = prompt.len() as u32;
        let positions = if step == 0 { 0..len } else { len + step - 1..len + step };
        match step {
            0 => batch.inputs.extend(prompt.iter().map(|&id| Input::Token(id))),
            _ => batch.inputs.push(Input::Sampled(i)),
        }
        batch.positions.extend(positions.clone());
        batch.slot_mapping.extend(positions.clone().map(|at| i * BLOCKS * 32 + at));
        batch.cu_seqlens_q.push(batch.inputs.len() as u32);
        batch.context_lens.push(positions.end);
        batch.block_tables.extend(i * BLOCKS..(i + 1) * BLOCKS);
        batch.sequence_slots.push(i);
        batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
        if step == 0 {
            batch.init.push(SlotInit { slot: i, params: Arc::new(params), prompt: prompt.into(), generated: Vec::new() });
        }
        if ask.logprobs {
            batch.num_logprobs.push(num_logprobs);
        }
        let words = mask_words(VOCAB as usize);
        let mask = (ask.mask)(step, i).map(|allows| {
            masks.words.resize(masks.words.len() + words, 0);
            let at = masks.words.len() - words;
            (0..VOCAB).filter(|&id| allows(id)).for_each(|id| masks.words[at + id as usize / 32] |= 1 << (id % 32));
            (masks.words.len() / words - 1) as u32
        });
        masks.of.push(mask);
    }
    batch.sample_later = !masks.words.is_empty();
    (batch, masks)
}

/// Runs all sequences together with as many steps in flight as the engine allows.
fn generate(engine: &mut dyn Engine, ask: &Ask) -> Vec<StepOutput> {
    let (mut flying, mut outs) = (VecDeque::new(), Vec::new());
    for step in 0..STEPS + engine.max_in_flight() as u32 - 1 {
        if step < STEPS {
            let (batch, masks) = batch(step, ask);
            let batch = batch.in_all_groups(&engine.kv_capacity());
            flying.push_back(engine.submit(&batch).unwrap());
            if batch.sample_later {
                engine.sample(flying[flying.len() - 1], &masks).unwrap();
            }
        }
        if flying.len() == engine.max_in_flight() || step >= STEPS {
            let mut out = StepOutput::default();
            engine.collect(flying.pop_front().unwrap(), &mut out).unwrap();
            outs.push(out);
        }
    }
    assert_eq!(outs.len(), STEPS as usize);
    outs
}

fn texts(outs: &[StepOutput]) -> Vec<Vec<Sampled>> {
    outs.iter().map(|out| out.sampled.clone()).collect()
}

fn each_model(open: Factory, dir: &Path, check: impl Fn(&mut dyn Engine)) {
    for arch in PLAIN[..2].iter().filter_map(|name| Arch::by_name(name)) {
        let path = dir.join(format!("{}.gguf", arch.name));
        TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(arch) }.build().write(&path).unwrap();
        check(&mut *open(&path, 32));
    }
}

fn logprobs_are_those_of_the_raw_logits(engine: &mut dyn Engine) {
    let plain = generate(engine, &Ask { logits: false, logprobs: false, mask: FREE });
    assert!(plain.iter().all(|out| out.logprobs.iter().all(Option::is_none)));
    let asked = generate(engine, &Ask { logits: false, logprobs: true, mask: FREE });
    let full = generate(engine, &Ask { logits: true, logprobs: true, mask: FREE });
    assert_eq!(texts(&plain), texts(&asked), "log-probabilities change no text");
    assert_eq!(texts(&plain), texts(&full));
    for (step, (asked, full)) in asked.iter().zip(&full).enumerate() {
        assert_eq!(asked.logprobs, full.logprobs, "step {step}");
        for (i, (_, n)) in sequences().into_iter().enumerate() {
            let (Some(n), Sampled::Token(chosen)) = (n, full.sampled[i]) else {
                assert!(full.logprobs[i].is_none());
                continue;
            };
            let (logits, got) = (&full.logits[i], full.logprobs[i].as_ref().unwrap());
            let norm = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let close = |got: f32, id: u32| (f64::from(got) - f64::from(logits[id as usize]) + norm).abs() < 1e-5;
            assert!(close(got.chosen, chosen), "step {step}, sequence {i}: {got:?}");
            let mut order: Vec<u32> = (0..VOCAB).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            assert_eq!(got.top.iter().map(|top| top.0).collect::<Vec<_>>(), order[..usize::from(n)], "step {step}, sequence {i}");
            assert!(got.top.iter().all(|&(id, logprob)| close(logprob, id)), "step {step}, sequence {i}: {got:?}");
        }
    }
}

fn masks_forbid_ids(engine: &mut dyn Engine) {
    // Each step has a different mask, so steps in flight must not share one.
    let only = |step: u32, i: u32| (step * 37 + i * 11) % VOCAB;
    let forced = |step: u32, i: u32| -> Option<Box<dyn Fn(u32) -> bool>> { Some(Box::new(move |id| id == only(step, i))) };
    for (step, out) in (0..).zip(generate(engine, &Ask { logits: false, logprobs: true, mask: &forced })) {
        for (i, &sampled) in (0..).zip(&out.sampled) {
            assert_eq!(sampled, Sampled::Token(only(step, i)), "step {step}, sequence {i}");
        }
        let logprobs = out.logprobs[0].as_ref().unwrap();
        assert!(logprobs.chosen <= logprobs.top[0].1, "log-probabilities are those without the mask: {logprobs:?}");
    }
    let plain = generate(engine, &Ask { logits: false, logprobs: false, mask: FREE });
    let some = |_: u32, i: u32| -> Option<Box<dyn Fn(u32) -> bool>> {
        match i {
            1 => Some(Box::new(|id| id % 3 == 1)),
            3 => Some(Box::new(|id| id >= VOCAB - 9)),
            4 => Some(Box::new(|_| true)),
            _ => None,
        }
    };
    for logits in [false, true] {
        let masked = generate(engine, &Ask { logits, logprobs: false, mask: &some });
        for (plain, masked) in plain.iter().zip(&masked) {
            for i in [0, 2, 4] {
                assert_eq!(plain.sampled[i], masked.sampled[i], "sequence {i} samples as without masks");
            }
            assert!(matches!(masked.sampled[1], Sampled::Token(id) if id % 3 == 1), "{:?}", masked.sampled);
            assert!(matches!(masked.sampled[3], Sampled::Token(id) if id >= VOCAB - 9), "{:?}", masked.sampled);
        }
    }
    // In the last step, the mask of one sequence forbids every id. The others continue.
    let nothing =
        |step: u32, i: u32| -> Option<Box<dyn Fn(u32) -> bool>> { (step == STEPS - 1 && i == 0).then(|| Box::new(|_| false) as _) };
    let outs = generate(engine, &Ask { logits: false, logprobs: true, mask: &nothing });
    let (last, due) = (&outs[STEPS as usize - 1], &plain[STEPS as usize - 1]);
    assert_eq!((last.sampled[0], &last.logprobs[0]), (Sampled::NotFinite, &None));
    assert_eq!(last.sampled[1..], due.sampled[1..]);
}

/// A step that waits to be sampled blocks the next steps and can be dropped.
fn a_step_is_sampled_once(engine: &mut dyn Engine) {
    let (first, masks) = batch(0, &Ask { logits: false, logprobs: false, mask: FREE });
    let mut first = Batch { sample_later: true, ..first.in_all_groups(&engine.kv_capacity()) };
    let step = engine.submit(&first).unwrap();
    assert!(engine.submit(&first).is_err(), "the step before is not sampled yet");
    let too_few = Masks { of: vec![None], ..Masks::default() };
    assert!(engine.sample(step, &too_few).is_err(), "one mask for five sequences");
    let mut out = StepOutput::default();
    assert!(engine.collect(step, &mut out).is_err(), "a step that was not sampled has no results");
    let step = engine.submit(&first).unwrap();
    engine.sample(step, &masks).unwrap();
    assert!(engine.sample(step, &masks).is_err(), "the step is already sampled");
    engine.collect(step, &mut out).unwrap();
    first.sample_later = false;
    let (plain, sampled) = (engine.submit(&first).unwrap(), out.sampled.clone());
    engine.collect(plain, &mut out).unwrap();
    assert_eq!(out.sampled, sampled);
}

fn check_sampling(engine: &mut dyn Engine) {
    logprobs_are_those_of_the_raw_logits(engine);
    masks_forbid_ids(engine);
    a_step_is_sampled_once(engine);
}

#[test]
fn logprobs_and_masks_hold() {
    let dir = tempfile::tempdir().unwrap();
    each_model(&on_cpu, dir.path(), check_sampling);
}

#[test]
#[ignore = "needs a GPU"]
fn logprobs_and_masks_hold_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    each_model(&on_gpu, dir.path(), check_sampling);
}
