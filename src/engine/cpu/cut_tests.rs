//! Compares models that are cut into shards and ranges of layers with whole ones: every bit must be equal.

use std::sync::Arc;

use super::testing::{open, options};
use super::{CpuEngine, CpuOptions, Cut, simd};
use crate::{Batch, CacheType, Engine, Input, SlotInit, StepOutput};
use logits::SamplingParams;
use model::testing::TinyModel;
use model::{Arch, Experts, QUANTS};

const BLOCKS: u32 = 3;

/// A model whose heads, inner elements and experts can be cut into eight: the CPU's slices have 512 columns.
fn wide(name: &str) -> TinyModel {
    let arch = Arch::by_name(name).unwrap_or_else(|| panic!("no architecture {name}"));
    let num_layers = if arch.name.starts_with("gemma") { 7 } else { 2 };
    let tiny =
        TinyModel { num_heads: 16, num_kv_heads: 8, head_dim: 256, ffn_dim: 4096, num_layers, optional: true, ..TinyModel::new(arch) };
    quantised(tiny, "F16")
}

fn with_experts(tiny: TinyModel) -> TinyModel {
    let experts = TinyModel::experts(tiny.arch);
    let shared_ffn_dim = if experts.shared_ffn_dim > 0 { 4096 } else { 0 };
    TinyModel { experts: Some(Experts { count: 11, used: 4, shared_ffn_dim, ..experts }), ..tiny }
}

fn quantised(tiny: TinyModel, quant: &str) -> TinyModel {
    TinyModel { quant: QUANTS.iter().find(|row| row.name == quant).unwrap(), ..tiny }
}

fn engine(tiny: &TinyModel, cut: &Cut, kernels: &'static simd::Kernels) -> Result<CpuEngine, String> {
    open(&tiny.build(), &CpuOptions { cut: cut.clone(), ..options() }, kernels)
}

/// The bits of the logits of a prompt in two chunks and of four generated tokens, in two sequences of a batch.
fn bits(mut engine: CpuEngine) -> Vec<Vec<u32>> {
    let vocab = engine.spec().vocab_size as u32;
    let prompts: [Vec<u32>; 2] = [23, 18].map(|len| (0..len).map(|i| (i * 31 + len) % vocab).collect());
    let mut all = Vec::new();
    let mut step = |from: u32, rows: u32, inputs: Vec<Input>, init: Vec<SlotInit>| {
        let place = |slot: u32, position: u32| slot * BLOCKS * 32 + position;
        let batch = Batch {
            inputs,
            positions: (0..2).flat_map(|_| from..from + rows).collect(),
            cu_seqlens_q: vec![0, rows, 2 * rows],
            context_lens: vec![from + rows; 2],
            slot_mapping: (0..2).flat_map(|slot| (from..from + rows).map(move |position| place(slot, position))).collect(),
            block_tables: (0..2 * BLOCKS).collect(),
            max_blocks: BLOCKS as usize,
            sequence_slots: vec![0, 1],
            init,
            sampled_rows: vec![rows - 1, 2 * rows - 1],
            num_logprobs: vec![None; 2],
            want_logits: true,
            ..Batch::default()
        };
        let mut out = StepOutput::default();
        let id = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
        engine.collect(id, &mut out).unwrap();
        all.extend(out.logits.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()));
    };
    let params = Arc::new(SamplingParams::greedy());
    let init = |slot: u32| SlotInit { slot, params: params.clone(), prompt: prompts[slot as usize].clone().into(), generated: Vec::new() };
    let chunk = |from: usize, to: usize| prompts.iter().flat_map(|prompt| prompt[from..to].iter().map(|&id| Input::Token(id))).collect();
    step(0, 7, chunk(0, 7), vec![init(0), init(1)]);
    step(7, 11, chunk(7, 18), Vec::new());
    for position in 18..22 {
        step(position, 1, vec![Input::Sampled(0), Input::Sampled(1)], Vec::new());
    }
    all
}

/// Dense models and routed ones, with shared heads of keys and values, norms of heads, biases, norms behind branches and fused tensors.
fn models() -> Vec<TinyModel> {
    vec![
        TinyModel { ffn_dim: 4160, ..wide("llama") },
        TinyModel { num_kv_heads: 2, ..wide("llama") },
        wide("qwen2"),
        wide("qwen3"),
        wide("gpt2"),
        wide("phi3"),
        wide("gemma2"),
        wide("gemma3"),
        with_experts(wide("llama")),
        with_experts(wide("qwen2moe")),
        with_experts(wide("qwen3moe")),
        quantised(wide("llama"), "F32"),
        quantised(wide("llama"), "Q8_0"),
        quantised(wide("llama"), "Q4_K"),
        quantised(wide("llama"), "Q6_K"),
        quantised(wide("qwen2"), "MXFP4"),
        quantised(with_experts(wide("qwen2moe")), "Q4_1"),
    ]
}

#[test]
fn shards_give_the_bits_of_the_whole() {
    for (i, kernels) in simd::dispatch::available().into_iter().enumerate() {
        // the fastest kernels compute all models; the others differ only in their products
        let few = ["llama-F32", "llama-Q4_K", "qwen2moe-experts-Q4_1"];
        for tiny in models().into_iter().filter(|tiny| i == 0 || few.contains(&&*tiny.name())) {
            let of = |shards| bits(engine(&tiny, &Cut { shards, ..Cut::default() }, kernels).unwrap());
            let whole = of(1);
            assert!(whole.iter().flatten().all(|&logit| f32::from_bits(logit).is_finite()), "{}", tiny.name());
            for shards in [2, 4, 8] {
                assert_eq!(of(shards), whole, "{} in {shards} shards ({})", tiny.name(), kernels.name);
            }
        }
    }
}

#[test]
fn shards_give_the_bits_of_the_whole_with_a_cache_of_8_bits() {
    let kernels = simd::dispatch::available()[0];
    for tiny in [wide("llama"), wide("qwen2"), wide("gpt2")] {
        let of = |cut: Cut| {
            let options = CpuOptions { cut, cache_type: CacheType::Q8, ..options() };
            bits(open(&tiny.build(), &options, kernels).unwrap())
        };
        let whole = of(Cut::default());
        assert_ne!(whole, bits(engine(&tiny, &Cut::default(), kernels).unwrap()), "{}: 8 bits", tiny.name());
        for cut in [Cut { shards: 2, ..Cut::default() }, Cut { shards: 8, ..Cut::default() }, Cut { shards: 4, starts: vec![1] }] {
            assert_eq!(of(cut.clone()), whole, "{} {cut:?}", tiny.name());
        }
    }
}

#[test]
fn ranges_of_layers_give_the_bits_of_the_whole() {
    let kernels = simd::dispatch::available()[0];
    for tiny in models() {
        let whole = bits(engine(&tiny, &Cut::default(), kernels).unwrap());
        let each = (1..tiny.num_layers).collect::<Vec<_>>();
        for cut in [Cut { shards: 1, starts: vec![1] }, Cut { shards: 1, starts: each }, Cut { shards: 4, starts: vec![1] }] {
            assert_eq!(bits(engine(&tiny, &cut, kernels).unwrap()), whole, "{} {cut:?}", tiny.name());
        }
    }
}

#[test]
fn what_kernels_cannot_cut_is_refused_by_name() {
    let kernels = simd::dispatch::available()[0];
    let refused = |tiny: &TinyModel, shards| match engine(tiny, &Cut { shards, ..Cut::default() }, kernels) {
        Err(error) => error,
        Ok(_) => panic!("{} in {shards} shards", tiny.name()),
    };
    let odd = TinyModel { num_heads: 12, num_kv_heads: 4, ..wide("llama") };
    assert_eq!(refused(&odd, 8), "unsupported: op attention in layer 0: 12 heads cannot be cut into 8 shards");
    let few = TinyModel { experts: Some(TinyModel::experts(odd.arch)), ..wide("llama") };
    assert_eq!(refused(&few, 8), "unsupported: op experts in layer 0: 5 experts for 8 shards");
    let blocks = quantised(TinyModel { head_dim: 64, ..wide("llama") }, "Q4_K");
    assert!(refused(&blocks, 8).contains("1024 columns of blk.0.attn_output.weight, in blocks of 256, are cut into 4 slices at most"));
    let narrow = TinyModel { ffn_dim: 2048, ..wide("llama") };
    assert!(refused(&narrow, 8).contains("tensor blk.0.ffn_down.weight: the CPU"), "{}", refused(&narrow, 8));
}
