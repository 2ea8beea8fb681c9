//! Tests what only the CPU's engine does at the seam.

use std::sync::Arc;

use super::testing::{open, options};
use super::{CpuEngine, CpuOptions, simd};
use crate::{Batch, CacheType, Engine, Input, Sampled, SlotInit, StepOutput};
use gguf::GgufBuilder;
use logits::{Logprobs, SamplingParams};
use model::testing::TinyModel;
use model::{ARCHS, Arch};

const VOCAB: u32 = 331;
const BLOCKS: u32 = 3;

/// An engine of one tiny model.
struct Rig {
    engine: CpuEngine,
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
        Self { engine: open(file, &options(), simd::dispatch::available()[0]).unwrap() }
    }

    fn step(&mut self, batch: &Batch) -> StepOutput {
        let batch = batch.clone().in_all_groups(&self.engine.kv_capacity());
        let mut out = StepOutput::default();
        let step = self.engine.submit(&batch).unwrap();
        self.engine.collect(step, &mut out).unwrap();
        out
    }

    /// Runs one sequence's rows and returns the results of the last `num_sampled` rows.
    fn run(&mut self, slot: u32, start: u32, inputs: &[Input], num_sampled: u32) -> Vec<Drawn> {
        drawn(self.step(&batch(slot, start, inputs, num_sampled)))
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
        drawn(self.step(&Batch { init: vec![init], ..batch(slot, 0, &inputs, 1) }))
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

/// A model that rotates so many of its 32 pairs by each of a row's positions.
fn in_sections(pairs: [i32; 3]) -> Rig {
    let tiny = TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(Arch::by_name("qwen2").unwrap()) };
    Rig::of(&tiny.build().kv("qwen2.rope.dimension_sections", pairs.to_vec()))
}

/// The bits of the last row's logits. `positions` gives the three positions of each row.
fn logits_at(rig: &mut Rig, positions: impl Fn(u32) -> [u32; 3], chunk: usize) -> Vec<u32> {
    let inputs: Vec<Input> = prompt().iter().map(|&id| Input::Token(id)).collect();
    let mut last = Vec::new();
    for (i, inputs) in inputs.chunks(chunk).enumerate() {
        let plain = batch(0, (i * chunk) as u32, inputs, 1);
        let all: Vec<[u32; 3]> = plain.indices(0).map(&positions).collect();
        let grid_positions = all.iter().map(|&[_, second, third]| [second, third]).collect();
        let init = SlotInit { slot: 0, params: Arc::new(params()), prompt: [].into(), generated: Vec::new() };
        let batch = Batch { positions: all.iter().map(|at| at[0]).collect(), grid_positions, init: vec![init], ..plain };
        last = drawn(rig.step(&batch)).remove(0).logits;
    }
    last
}

/// Each section is rotated by its own position, and by no other.
#[test]
fn rows_are_rotated_by_three_positions() {
    let place = |i: u32| i * 7 % (i + 1);
    let expected = logits_at(&mut in_sections([32, 0, 0]), |i| [place(i), i, 0], 64);
    for section in [1, 2] {
        let mut pairs = [0; 3];
        pairs[section] = 32;
        let others = |i: u32| {
            let mut all = [i; 3];
            all[section] = place(i);
            all
        };
        assert_eq!(logits_at(&mut in_sections(pairs), others, 64), expected, "section {section}");
    }
    let grid = |i: u32| [place(i), i / 3, i % 3];
    let whole = logits_at(&mut in_sections([8, 12, 12]), grid, 64);
    assert_ne!(whole, expected);
    assert_eq!(logits_at(&mut in_sections([8, 12, 12]), grid, 5), whole, "in chunks");
    let text = |i: u32| [i; 3];
    assert_eq!(logits_at(&mut in_sections([8, 12, 12]), text, 64), logits_at(&mut in_sections([32, 0, 0]), text, 64));
}

/// A model with keys whose bias is a hundred times larger than what differs between them, as Qwen2.5's are.
fn with_large_bias(cache_type: CacheType) -> Rig {
    let tiny = TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(Arch::by_name("qwen2").unwrap()) };
    let mut file = tiny.build().kv("qwen2.rope.dimension_sections", vec![8i32, 12, 12]);
    for layer in 0..tiny.num_layers {
        let name = format!("blk.{layer}.attn_k.bias");
        let bias = file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap();
        for (i, element) in bias.bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *element = if i % 5 == 0 { 100.0f32 } else { -0.3 }.to_le_bytes();
        }
    }
    Rig { engine: open(&file, &CpuOptions { cache_type, ..options() }, simd::dispatch::available()[0]).unwrap() }
}

#[test]
fn a_large_bias_of_keys_costs_no_bits() {
    let place = |i: u32| [i / 2, i / 3, i % 3];
    for positions in [&place as &dyn Fn(u32) -> [u32; 3], &|i| [i; 3]] {
        let logits = |cache_type, chunk| logits_at(&mut with_large_bias(cache_type), positions, chunk);
        let (exact, packed) = (logits(CacheType::F32, 64), logits(CacheType::Q8, 64));
        let worst = exact.iter().zip(&packed).map(|(&a, &b)| (f32::from_bits(a) - f32::from_bits(b)).abs()).fold(0.0, f32::max);
        let largest = exact.iter().map(|&x| f32::from_bits(x).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < 0.06 * largest, "{worst} of {largest}");
        for chunk in [1, 5, 33] {
            assert_eq!(logits(CacheType::Q8, chunk), packed, "in chunks of {chunk}");
        }
    }
}

#[test]
fn a_cache_of_fewer_bits_takes_less_memory() {
    let bytes = |arch: &str, cache_type| {
        let tiny = TinyModel { num_kv_heads: 4, ..TinyModel::new(Arch::by_name(arch).unwrap()) };
        let engine = open(&tiny.build(), &CpuOptions { cache_type, ..options() }, simd::dispatch::available()[0]).unwrap();
        assert_eq!(engine.kv_capacity().cache_type, cache_type);
        engine.info().kv_block_bytes
    };
    // two layers of four heads of 64 elements, for 32 tokens
    let elements = 2 * 2 * 4 * 64 * 32;
    let of = |arch| CacheType::ALL.map(|cache_type| bytes(arch, cache_type));
    assert_eq!(of("llama"), [4 * elements, 2 * elements, elements * 34 / 32]);
    // a cosine and a sine for each of 32 pairs
    assert_eq!(of("qwen2"), [4 * elements, 2 * elements, elements * 34 / 32 + 64 * 4 * 32]);
}

#[test]
fn a_model_without_sections_refuses_three_positions() {
    let mut rig = Rig::new(Arch::by_name("qwen2").unwrap());
    let batch = Batch { grid_positions: vec![[0; 2]], ..batch(0, 0, &[Input::Token(1)], 0) };
    let error = rig.engine.submit(&batch).unwrap_err().to_string();
    assert!(error.contains("rows with three positions: the model rotates by one"), "{error}");
}
