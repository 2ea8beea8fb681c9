//! Tests rows on both backends: several sampled rows per sequence, and rows that are embeddings.

use std::path::Path;
use std::sync::Arc;

use engine::{Batch, Engine, Input, Masks, Sampled, SlotInit, StepOutput};
use gguf::GgufFile;
use logits::{Logprobs, SamplingParams, mask_words};
use model::testing::{PLAIN, TinyModel};
use model::{Arch, QUANTS, TensorRole, Weights};

use crate::backends::{Factory, gpu, on_cpu, on_gpu};

const VOCAB: u32 = 331;
const BLOCKS: u32 = 3;

/// The result of one sampled row.
#[derive(Debug, PartialEq)]
struct Drawn {
    sampled: Sampled,
    logits: Vec<u32>, // bits
    logprobs: Option<Logprobs>,
}

struct Rig<'a>(&'a mut dyn Engine);

impl Rig<'_> {
    fn step(&mut self, batch: &Batch, masks: Option<&Masks>) -> Vec<Drawn> {
        let batch = batch.clone().in_all_groups(&self.0.kv_capacity());
        let (mut out, batch) = (StepOutput::default(), Batch { sample_later: masks.is_some(), ..batch });
        let step = self.0.submit(&batch).unwrap();
        if let Some(masks) = masks {
            self.0.sample(step, masks).unwrap();
        }
        self.0.collect(step, &mut out).unwrap();
        assert_eq!([out.logits.len(), out.logprobs.len()], [out.sampled.len(); 2]);
        let rows = out.sampled.into_iter().zip(out.logits).zip(out.logprobs);
        let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect();
        rows.map(|((sampled, logits), logprobs)| Drawn { sampled, logits: bits(logits), logprobs }).collect()
    }

    /// Runs one sequence's rows and returns the results of the last `num_sampled` rows.
    fn run(&mut self, slot: u32, start: u32, inputs: &[Input], num_sampled: u32) -> Vec<Drawn> {
        self.step(&batch(slot, start, inputs, num_sampled), None)
    }

    fn start(&mut self, slot: u32, params: &SamplingParams) -> Vec<Drawn> {
        let inputs: Vec<Input> = prompt().into_iter().map(Input::Token).collect();
        self.step(&Batch { init: vec![init(slot, params)], ..batch(slot, 0, &inputs, 1) }, None)
    }

    /// Starts a sequence and generates `n` tokens one at a time. Returns the result of each token.
    fn generate(&mut self, slot: u32, params: &SamplingParams, n: u32) -> Vec<Drawn> {
        let mut all = self.start(slot, params);
        for i in 1..n {
            all.extend(self.run(slot, prompt().len() as u32 + i - 1, &[Input::Sampled(slot)], 1));
        }
        all
    }
}

fn prompt() -> Vec<u32> {
    (0..37).map(|i| (i * 31 + 5) % VOCAB).collect()
}

fn init(slot: u32, params: &SamplingParams) -> SlotInit {
    SlotInit { slot, params: Arc::new(params.clone()), prompt: prompt().into(), generated: Vec::new() }
}

/// Random draws, so that each token depends on the earlier tokens through its seed, its position, its penalties and the ids that only the
/// first tokens may not be.
fn params() -> SamplingParams {
    SamplingParams {
        temperature: 0.8,
        seed: 11,
        repetition_penalty: 1.2,
        frequency_penalty: 0.5,
        min_tokens: 5,
        suppressed: (0..VOCAB).step_by(3).collect(),
        ..SamplingParams::greedy()
    }
}

/// Every way to draw.
fn all_params() -> [SamplingParams; 4] {
    let greedy = SamplingParams::greedy();
    let penalised = SamplingParams { presence_penalty: 0.7, logit_bias: vec![(7, 4.0), (9, -3.0)], ..greedy.clone() };
    [params(), SamplingParams { top_k: 40, top_p: 0.9, ..params() }, SamplingParams { seed: 5, temperature: 1.0, ..greedy }, penalised]
}

/// One sequence in a sequence slot. Its blocks have the same number. Its last `num_sampled` rows are sampled.
fn batch(slot: u32, start: u32, inputs: &[Input], num_sampled: u32) -> Batch {
    let rows = inputs.len() as u32;
    Batch {
        inputs: inputs.to_vec(),
        positions: (start..start + rows).collect(),
        cu_seqlens_q: vec![0, rows],
        context_lens: vec![start + rows],
        slot_mapping: (start..start + rows).map(|position| slot * BLOCKS * 32 + position).collect(),
        block_tables: (slot * BLOCKS..(slot + 1) * BLOCKS).collect(),
        max_blocks: BLOCKS as usize,
        sequence_slots: vec![slot],
        sampled_rows: (rows - num_sampled..rows).collect(),
        num_logprobs: vec![Some(3); num_sampled as usize],
        want_logits: true,
        ..Batch::default()
    }
}

/// Several sequences in one step.
fn together(parts: Vec<Batch>) -> Batch {
    let mut all = Batch { cu_seqlens_q: vec![0], max_blocks: BLOCKS as usize, want_logits: true, ..Batch::default() };
    for part in parts {
        let first = all.num_tokens() as u32;
        all.inputs.extend(part.inputs);
        all.positions.extend(part.positions);
        all.cu_seqlens_q.push(all.inputs.len() as u32);
        all.context_lens.extend(part.context_lens);
        all.slot_mapping.extend(part.slot_mapping);
        all.block_tables.extend(part.block_tables);
        all.sequence_slots.extend(part.sequence_slots);
        all.sampled_rows.extend(part.sampled_rows.iter().map(|row| first + row));
        all.num_logprobs.extend(part.num_logprobs);
    }
    all
}

fn tokens(rows: &[Drawn]) -> Vec<Input> {
    let token = |row: &Drawn| match row.sampled {
        Sampled::Token(id) => Input::Token(id),
        other => panic!("{other:?}"),
    };
    rows.iter().map(token).collect()
}

/// Another token than the given one.
fn wrong(input: Input) -> Input {
    let Input::Token(id) = input else { panic!("{input:?}") };
    Input::Token((id + 1) % VOCAB)
}

fn is_skipped(row: &Drawn) -> bool {
    row.sampled == Sampled::Skipped && row.logprobs.is_none()
}

/// A mask that allows `id` only.
fn only(id: u32) -> Vec<u32> {
    let mut words = vec![0; mask_words(VOCAB as usize)];
    words[id as usize / 32] = 1 << (id % 32);
    words
}

fn several_rows_give_the_bits_of_one_at_a_time(rig: &mut Rig) {
    let start = prompt().len() as u32;
    for params in all_params() {
        let alone = rig.generate(0, &params, 8);
        let drafts = tokens(&alone);
        assert_eq!(rig.start(1, &params), alone[..1]);
        assert_eq!(rig.run(1, start, &drafts[..7], 7), alone[1..]);
        assert_eq!(rig.start(2, &params), alone[..1]);
        let [first, second] = [&drafts[..3], &drafts[3..7]];
        assert_eq!(rig.run(2, start, first, 3), alone[1..4]);
        // The first row repeats what the slot sampled last.
        assert_eq!(rig.run(2, start + 3, &[&[Input::Sampled(2)], &second[1..]].concat(), 4), alone[4..]);
    }
}

/// The logits of so many rows are not all in memory at once.
fn more_rows_than_slots_are_sampled(rig: &mut Rig) {
    let (start, n) = (prompt().len() as u32, rig.0.max_slots() as u32 + 8);
    let alone = rig.generate(0, &params(), n + 1);
    let mut drafts = tokens(&alone)[..n as usize].to_vec();
    rig.start(1, &params());
    assert_eq!(rig.run(1, start, &drafts, n), alone[1..]);
    // The first wrong draft is in front of rows whose logits come later, and right behind the rows whose logits come first.
    for at in [4, rig.0.max_slots()] {
        drafts[at] = wrong(drafts[at]);
        rig.start(2, &params());
        let rows = rig.run(2, start, &drafts, n);
        assert_eq!(rows[..at], alone[1..=at]);
        assert!(rows[at..].iter().all(is_skipped), "{at}");
        assert_eq!(rig.run(2, start + at as u32, &[Input::Sampled(2)], 1)[0], alone[at + 1]);
        drafts[at] = tokens(&alone)[at];
    }
    let ids: Vec<u32> = (0..n).map(|i| (3 * i + 1) % VOCAB).collect();
    let masks = Masks { words: ids.iter().flat_map(|&id| only(id)).collect(), of: (0..n).map(Some).collect() };
    rig.start(3, &params());
    let fed: Vec<Input> = std::iter::once(drafts[0]).chain(ids[..n as usize - 1].iter().map(|&id| Input::Token(id))).collect();
    let rows = rig.step(&batch(3, start, &fed, n), Some(&masks));
    assert!(rows.iter().zip(&ids).all(|(row, &id)| row.sampled == Sampled::Token(id)));
}

fn rows_after_a_wrong_draft_leave_no_trace(rig: &mut Rig) {
    let start = prompt().len() as u32;
    for params in all_params() {
        let alone = rig.generate(0, &params, 6);
        let mut drafts = tokens(&alone)[..5].to_vec();
        drafts[2] = wrong(drafts[2]);
        rig.start(1, &params);
        let rows = rig.run(1, start, &drafts, 5);
        assert_eq!(rows[..2], alone[1..3]);
        assert!(rows[2..].iter().all(is_skipped), "{:?}", rows.iter().map(|row| row.sampled).collect::<Vec<_>>());
        // The next step continues from the last valid token, as if there had been no drafts.
        for (i, row) in alone.iter().enumerate().skip(3) {
            assert_eq!(rig.run(1, start + i as u32 - 1, &[Input::Sampled(1)], 1)[0], *row, "token {i}");
        }
    }
}

fn sequences_with_different_numbers_of_sampled_rows_share_a_batch(rig: &mut Rig) {
    let alone = rig.generate(0, &params(), 4);
    let (start, drafts) = (prompt().len() as u32, tokens(&alone));
    (1..5).for_each(|slot| drop(rig.start(slot, &params())));
    let bad = [drafts[0], wrong(drafts[1]), drafts[2]];
    let parts = vec![
        batch(1, start, &drafts[..3], 3),
        batch(2, start, &drafts[..2], 0),
        batch(3, start, &drafts[..1], 1),
        batch(4, start, &bad, 3),
    ];
    let rows = rig.step(&together(parts), None);
    assert_eq!(rows[..3], alone[1..]);
    assert_eq!([&rows[3], &rows[4]], [&alone[1]; 2]);
    assert!(rows[5..].iter().all(is_skipped));
}

fn each_sampled_row_has_its_own_mask(rig: &mut Rig) {
    let start = prompt().len() as u32;
    let forced = [17, 301];
    let mut alone = rig.start(0, &params());
    let first = tokens(&alone)[0];
    for (i, (input, id)) in [first, Input::Token(17)].into_iter().zip(forced).enumerate() {
        let masks = Masks { words: only(id), of: vec![Some(0)] };
        alone.extend(rig.step(&batch(0, start + i as u32, &[input], 1), Some(&masks)));
    }
    alone.extend(rig.run(0, start + 2, &[Input::Token(301)], 1));
    rig.start(1, &params());
    let masks = Masks { words: forced.map(only).concat(), of: vec![Some(0), Some(1), None] };
    let together = rig.step(&batch(1, start, &[first, Input::Token(17), Input::Token(301)], 3), Some(&masks));
    assert_eq!(together, alone[1..]);
    assert_eq!([alone[1].sampled, alone[2].sampled], forced.map(Sampled::Token));
}

fn an_embedding_gives_the_bits_of_its_token(rig: &mut Rig, path: &Path) {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let table = weights.get(TensorRole::TokenEmbd, 0).unwrap();
    let mut rows = vec![0f32; table.rows * table.cols];
    (table.quant.dequantize)(weights.data(table), &mut rows);
    rows.iter_mut().for_each(|x| *x *= weights.spec.embedding_scale);
    let ids = prompt();
    let expected = rig.start(0, &params());
    // Every third token is an embedding, and so are the last two. The table has another order than the rows.
    let given: Vec<usize> = (0..ids.len()).filter(|at| at % 3 == 0 || *at + 2 >= ids.len()).collect();
    let embeddings: Vec<f32> = given.iter().rev().flat_map(|&at| &rows[ids[at] as usize * table.cols..][..table.cols]).copied().collect();
    let mut inputs: Vec<Input> = ids.iter().map(|&id| Input::Token(id)).collect();
    for (row, &at) in given.iter().rev().enumerate() {
        inputs[at] = Input::Embedding(row as u32);
    }
    let mixed = Batch { init: vec![init(1, &params())], embeddings: embeddings.clone(), ..batch(1, 0, &inputs, 1) };
    assert_eq!(rig.step(&mixed, None), expected);
    // A decode step of one row.
    let last = ids.len() - 1;
    let fed: Vec<Input> = ids[..last].iter().map(|&id| Input::Token(id)).collect();
    rig.step(&Batch { init: vec![init(2, &params())], ..batch(2, 0, &fed, 0) }, None);
    let one = Batch { embeddings: embeddings[..table.cols].to_vec(), ..batch(2, last as u32, &[Input::Embedding(0)], 1) };
    assert_eq!(rig.step(&one, None), expected);
}

/// Checks all of the above on models whose embeddings both backends hold without rounding.
fn rows_are_independent(open: Factory) {
    let dir = tempfile::tempdir().unwrap();
    let quant = QUANTS.iter().find(|quant| quant.name == "F16").unwrap();
    for (i, arch) in PLAIN.iter().filter_map(|name| Arch::by_name(name)).enumerate() {
        let path = dir.path().join(format!("{}.gguf", arch.name));
        TinyModel { vocab_size: VOCAB as usize, quant, ..TinyModel::new(arch) }.build().write(&path).unwrap();
        let mut engine = open(&path, 16);
        let mut rig = Rig(&mut *engine);
        println!("{}", arch.name);
        several_rows_give_the_bits_of_one_at_a_time(&mut rig);
        an_embedding_gives_the_bits_of_its_token(&mut rig, &path);
        if i == 0 {
            more_rows_than_slots_are_sampled(&mut rig);
            rows_after_a_wrong_draft_leave_no_trace(&mut rig);
            sequences_with_different_numbers_of_sampled_rows_share_a_batch(&mut rig);
            each_sampled_row_has_its_own_mask(&mut rig);
        }
    }
}

#[test]
fn sampled_rows_and_embeddings_are_independent() {
    rows_are_independent(&on_cpu);
}

#[test]
#[ignore = "needs a GPU"]
fn sampled_rows_and_embeddings_are_independent_on_the_gpu() {
    let _gpu = gpu();
    rows_are_independent(&on_gpu);
}
