//! Tests the seam on the CPU: several sampled rows per sequence, and embeddings as rows.

use std::sync::Arc;

use super::matrix::dequantize_row;
use super::{CpuEngine, CpuOptions, Cut, simd};
use crate::{Batch, Engine, Input, Masks, Sampled, SlotInit, StepOutput};
use gguf::{GgufBuilder, GgufFile};
use logits::{Logprobs, SamplingParams, mask_words};
use model::testing::{PLAIN, TinyModel};
use model::{ARCHS, Arch, TensorRole, Weights};

const VOCAB: u32 = 331;
const BLOCKS: u32 = 3;

/// An engine of one tiny model, with a second copy of its weights.
struct Rig {
    engine: CpuEngine,
    weights: Weights,
}

/// The result of one sampled row.
#[derive(Debug, PartialEq)]
struct Drawn {
    sampled: Sampled,
    logits: Vec<u32>, // bits
    logprobs: Option<Logprobs>,
}

impl Rig {
    fn new(arch: &'static Arch) -> Self {
        Self::of(&TinyModel { vocab_size: VOCAB as usize, optional: true, ..TinyModel::new(arch) }.build())
    }

    fn of(file: &GgufBuilder) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        file.write(&path).unwrap();
        let load = || Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
        let weights = load();
        let options = CpuOptions {
            threads: 2,
            context: 96,
            num_blocks: 96,
            least_blocks: 96,
            block_size: 32,
            max_slots: 4,
            max_batch_tokens: 64,
            state_slots: 5,
            cut: Cut::default(),
        };
        Self { engine: CpuEngine::new(weights, &options, simd::dispatch::available()[0]).unwrap(), weights: load() }
    }

    fn step(&mut self, batch: &Batch, masks: Option<&Masks>) -> StepOutput {
        let batch = batch.clone().in_all_groups(&self.engine.kv_capacity());
        let (mut out, batch) = (StepOutput::default(), Batch { sample_later: masks.is_some(), ..batch });
        let step = self.engine.submit(&batch).unwrap();
        if let Some(masks) = masks {
            self.engine.sample(step, masks).unwrap();
        }
        self.engine.collect(step, &mut out).unwrap();
        out
    }

    /// Runs one sequence's rows and returns the results of the last `num_sampled` rows.
    fn run(&mut self, slot: u32, start: u32, inputs: &[Input], num_sampled: u32) -> Vec<Drawn> {
        drawn(self.step(&batch(slot, start, inputs, num_sampled), None))
    }

    /// Starts a sequence and generates `n` tokens one at a time. Returns the result of each token.
    fn generate(&mut self, slot: u32, params: &SamplingParams, n: u32) -> Vec<Drawn> {
        let mut all = self.start(slot, params);
        for i in 1..n {
            all.extend(self.run(slot, prompt().len() as u32 + i - 1, &[Input::Sampled(slot)], 1));
        }
        all
    }

    fn start(&mut self, slot: u32, params: &SamplingParams) -> Vec<Drawn> {
        let ids = prompt();
        let inputs: Vec<Input> = ids.iter().map(|&id| Input::Token(id)).collect();
        let init = SlotInit { slot, params: Arc::new(params.clone()), prompt: ids.into(), generated: Vec::new() };
        drawn(self.step(&Batch { init: vec![init], ..batch(slot, 0, &inputs, 1) }, None))
    }
}

fn prompt() -> Vec<u32> {
    (0..37).map(|i| (i * 31 + 5) % VOCAB).collect()
}

/// Random draws, so that each token depends on the earlier tokens through its seed, its position and its penalties.
fn params() -> SamplingParams {
    SamplingParams { temperature: 0.8, seed: 11, repetition_penalty: 1.2, frequency_penalty: 0.5, ..SamplingParams::greedy() }
}

/// One sequence in a sequence slot. Its blocks and its state slot have the same number. Its last `num_sampled` rows are sampled.
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

fn drawn(out: StepOutput) -> Vec<Drawn> {
    assert_eq!([out.logits.len(), out.logprobs.len()], [out.sampled.len(); 2]);
    let rows = out.sampled.into_iter().zip(out.logits).zip(out.logprobs);
    let bits = |logits: Vec<f32>| logits.into_iter().map(f32::to_bits).collect();
    rows.map(|((sampled, logits), logprobs)| Drawn { sampled, logits: bits(logits), logprobs }).collect()
}

fn tokens(rows: &[Drawn]) -> Vec<Input> {
    let token = |row: &Drawn| match row.sampled {
        Sampled::Token(id) => Input::Token(id),
        other => panic!("{other:?}"),
    };
    rows.iter().map(token).collect()
}

/// A mask that allows `id` only.
fn only(id: u32) -> Vec<u32> {
    let mut words = vec![0; mask_words(VOCAB as usize)];
    words[id as usize / 32] = 1 << (id % 32);
    words
}

#[test]
fn several_sampled_rows_give_the_bits_of_one_at_a_time() {
    for arch in PLAIN.iter().filter_map(|name| Arch::by_name(name)) {
        let mut rig = Rig::new(arch);
        let alone = rig.generate(0, &params(), 8);
        let drafts = tokens(&alone);
        assert_eq!(rig.start(1, &params()), alone[..1], "{}", arch.name);
        let start = prompt().len() as u32;
        // more rows than sequence slots: their logits are not all in memory at once
        assert_eq!(rig.run(1, start, &drafts[..7], 7), alone[1..], "{}", arch.name);
        assert_eq!(rig.start(2, &params()), alone[..1]);
        let [first, second] = [&drafts[..3], &drafts[3..7]];
        assert_eq!(rig.run(2, start, first, 3), alone[1..4], "{}", arch.name);
        // the first row repeats what the slot sampled last
        assert_eq!(rig.run(2, start + 3, &[&[Input::Sampled(2)], &second[1..]].concat(), 4), alone[4..], "{}", arch.name);
    }
}

#[test]
fn rows_after_a_wrong_draft_are_skipped_and_leave_no_trace() {
    let mut rig = Rig::new(&ARCHS[0]);
    let alone = rig.generate(0, &params(), 6);
    let mut drafts = tokens(&alone)[..5].to_vec();
    let Input::Token(right) = drafts[2] else { unreachable!() };
    drafts[2] = Input::Token((right + 1) % VOCAB);
    rig.start(1, &params());
    let start = prompt().len() as u32;
    let rows = rig.run(1, start, &drafts, 5);
    assert_eq!(rows[..2], alone[1..3]);
    let skipped = |row: &Drawn| row.sampled == Sampled::Skipped && row.logprobs.is_none();
    assert!(rows[2..].iter().all(skipped), "{:?}", rows.iter().map(|row| row.sampled).collect::<Vec<_>>());
    // the next step continues from the last valid token, as if there had been no drafts
    for (i, row) in alone.iter().enumerate().skip(3) {
        assert_eq!(rig.run(1, start + i as u32 - 1, &[Input::Sampled(1)], 1)[0], *row, "token {i}");
    }
}

#[test]
fn sequences_with_different_numbers_of_sampled_rows_share_a_batch() {
    let mut rig = Rig::new(&ARCHS[0]);
    let alone = rig.generate(0, &params(), 4);
    let (start, drafts) = (prompt().len() as u32, tokens(&alone));
    (1..4).for_each(|slot| drop(rig.start(slot, &params())));
    let parts = [batch(1, start, &drafts[..3], 3), batch(2, start, &drafts[..2], 0), batch(3, start, &drafts[..1], 1)];
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
    let rows = drawn(rig.step(&all, None));
    assert_eq!(rows[..3], alone[1..]);
    assert_eq!(rows[3..], alone[1..2]);
}

#[test]
fn each_sampled_row_has_its_own_mask() {
    let mut rig = Rig::new(&ARCHS[0]);
    let start = prompt().len() as u32;
    let forced = [17, 300];
    let mut alone = rig.start(0, &params());
    let first = tokens(&alone)[0];
    for (i, (input, id)) in [first, Input::Token(17)].into_iter().zip(forced).enumerate() {
        let masks = Masks { words: only(id), of: vec![Some(0)] };
        alone.extend(drawn(rig.step(&batch(0, start + i as u32, &[input], 1), Some(&masks))));
    }
    alone.extend(rig.run(0, start + 2, &[Input::Token(300)], 1));
    rig.start(1, &params());
    let masks = Masks { words: forced.map(only).concat(), of: vec![Some(0), Some(1), None] };
    let together = rig.step(&batch(1, start, &[first, Input::Token(17), Input::Token(300)], 3), Some(&masks));
    assert_eq!(drawn(together), alone[1..]);
    assert_eq!([alone[1].sampled, alone[2].sampled], forced.map(Sampled::Token));
}

#[test]
fn an_embedding_gives_the_bits_of_its_token() {
    for arch in PLAIN.iter().filter_map(|name| Arch::by_name(name)) {
        let mut rig = Rig::new(arch);
        let (spec, table) = (rig.weights.spec.clone(), *rig.weights.get(TensorRole::TokenEmbd, 0).unwrap());
        let scale = spec.embedding_scale;
        let embedding = |id: u32| {
            let mut row = vec![0.0; spec.hidden_dim];
            dequantize_row(&rig.weights, &table, id as usize, &mut row);
            row.iter_mut().for_each(|x| *x *= scale);
            row
        };
        let ids = prompt();
        // every third token is an embedding, and the table has another order than the rows
        let given: Vec<usize> = (0..ids.len()).step_by(3).collect();
        let embeddings: Vec<f32> = given.iter().rev().flat_map(|&at| embedding(ids[at])).collect();
        let mut inputs: Vec<Input> = ids.iter().map(|&id| Input::Token(id)).collect();
        for (row, &at) in given.iter().rev().enumerate() {
            inputs[at] = Input::Embedding(row as u32);
        }
        let expected = rig.start(0, &params());
        let init = SlotInit { slot: 1, params: Arc::new(params()), prompt: ids.into(), generated: Vec::new() };
        let mixed = Batch { init: vec![init], embeddings, ..batch(1, 0, &inputs, 1) };
        assert_eq!(drawn(rig.step(&mixed, None)), expected, "{}", arch.name);
    }
}

#[test]
fn a_model_without_recurrent_state_has_no_state_slots() {
    assert!(!Rig::new(&ARCHS[0]).engine.kv_capacity().has_state());
}

#[test]
fn a_slot_that_was_not_initialised_is_refused_before_the_step_runs() {
    let mut rig = Rig::new(&ARCHS[0]);
    let error = rig.engine.submit(&batch(2, 0, &[Input::Token(1)], 1)).unwrap_err().to_string();
    assert!(error.contains("sequence slot 2 was not initialised"), "{error}");
    let error = rig.engine.submit(&batch(2, 0, &[Input::Sampled(2)], 0)).unwrap_err().to_string();
    assert!(error.contains("has not sampled"), "{error}");
}

#[test]
fn experts_in_tensors_of_their_own_and_factors_beside_matrices_give_the_same_bits() {
    let arch = Arch::by_name("llama").unwrap();
    let experts = TinyModel::experts(arch);
    let whole = TinyModel { vocab_size: VOCAB as usize, experts: Some(experts), ..TinyModel::new(arch) }.build();
    let expected = Rig::of(&whole).generate(0, &params(), 3);
    assert_eq!(Rig::of(&TinyModel::with_split_experts(whole.clone())).generate(0, &params(), 3), expected);
    // weights halved, with a factor of 2
    let mut halved = whole;
    let matrices =
        [("blk.0.attn_v", 1), ("blk.1.attn_output", 1), ("blk.0.ffn_gate_exps", experts.count), ("blk.1.ffn_down_exps", experts.count)];
    for (stem, count) in matrices {
        let tensor = halved.tensors.iter_mut().find(|tensor| tensor.name == format!("{stem}.weight")).unwrap();
        for weight in tensor.bytes.as_chunks_mut::<4>().0 {
            *weight = (f32::from_le_bytes(*weight) / 2.0).to_le_bytes();
        }
        halved = halved.tensor_f32(&format!("{stem}.scale"), &[count as u64], &vec![2.0; count]);
    }
    assert_eq!(Rig::of(&halved).generate(0, &params(), 3), expected);
}
