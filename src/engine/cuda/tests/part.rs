//! Parts of models: shards that run one after another on a device, and ranges of layers. They give the bits of the whole.

use std::sync::Arc;

use super::super::lower::Op;
use super::super::*;
use super::batch;
use crate::program::{Op as ProgramOp, Shard};
use crate::{BlockTables, ModelPart};
use gguf::GgufFile;
use model::testing::TinyModel;
use model::{Arch, QUANTS};

/// Models that eight shards can compute on a GPU.
fn models() -> Vec<TinyModel> {
    let wide = |name: &str, quant: &str| TinyModel {
        num_heads: 16,
        num_kv_heads: 8,
        hidden_dim: 512,
        ffn_dim: 1024,
        optional: true,
        context_length: 1024,
        quant: QUANTS.iter().find(|row| row.name == quant).unwrap(),
        ..TinyModel::new(Arch::by_name(name).unwrap_or_else(|| panic!("no architecture {name}")))
    };
    vec![
        // shards share heads of keys and values, and the second half of the inner elements has one tile more
        TinyModel { num_kv_heads: 2, ffn_dim: 1088, ..wide("llama", "F16") },
        wide("llama", "Q8_0"),
        // long products are added in halves
        TinyModel { ffn_dim: 8256, num_heads: 32, head_dim: 256, ..wide("llama", "Q4_0") },
        TinyModel { ffn_dim: 8192, head_dim: 128, ..wide("gemma2", "F16") },
        wide("qwen2", "F16"),
        wide("qwen3", "F16"),
        wide("gpt2", "F16"),
        wide("phi3", "F16"),
        wide("command-r", "F16"),
        wide("gptneox", "F16"),
        wide("gemma2", "F16"),
        wide("gemma3", "Q8_0"),
    ]
}

fn load(tiny: &TinyModel) -> Weights {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    tiny.build().write(&path).unwrap();
    Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap()
}

fn options(shards: usize, layers: Option<std::ops::Range<usize>>) -> EngineOptions {
    EngineOptions {
        context: 512,
        kv_tokens: 4096,
        max_slots: 40,
        max_batch_tokens: 512,
        part: ModelPart { shards, layers },
        ..EngineOptions::default()
    }
}

fn in_shards(weights: &Weights, count: usize) -> Result<(Vec<Program>, DeviceProgram), EngineError> {
    let links = ropes(weights, 512).1;
    let of = |index| Program::new(weights, &links, &Scope { shard: Shard { index, count }, ..Scope::whole(&weights.spec) });
    let programs = (0..count).map(of).collect::<Result<Vec<_>, _>>()?;
    let program = DeviceProgram::of_shards(weights, &programs)?;
    Ok((programs, program))
}

#[test]
fn shards_join_to_one_program_with_the_same_exchanges() {
    for tiny in models() {
        let (weights, name) = (load(&tiny), tiny.name());
        // the products after attention and after the inner elements, and those of them that are added in halves
        let joined = 2 * tiny.num_layers;
        let is_long = |cols: &&usize| **cols >= sys::PEN_HALVES_COLUMNS as usize;
        let long = tiny.num_layers * [tiny.num_heads * tiny.head_dim, tiny.ffn_dim].iter().filter(is_long).count();
        for count in [1, 2, 4, 8] {
            let (programs, program) = in_shards(&weights, count).unwrap_or_else(|error| panic!("{name} in {count} shards: {error}"));
            let due = programs[0].ops.iter().filter(|placed| matches!(placed.op, ProgramOp::Exchange(_))).count();
            assert_eq!(due, if count == 1 { 0 } else { joined }, "{name} in {count} shards");
            let exchanges = program.ops.iter().filter(|op| matches!(op, Op::Exchange(_))).count();
            assert_eq!(exchanges, due, "{name} in {count} shards");
            let products = |slices: u32, halves: u32| {
                let is_one = |op: &&Op| matches!(op, Op::Linear(linear) if (linear.slices, linear.halves) == (slices, halves));
                program.ops.iter().filter(is_one).count()
            };
            let parts = [products(8, 1), products(4, 0), products(1, 0)];
            let expected = match count {
                1 => [long, 0, 0],
                2 => [0, 2 * long, 8 * (joined - long)],
                _ => [0, 0, 8 * joined],
            };
            assert_eq!(parts, expected, "{name} in {count} shards");
            assert_eq!(program.caches.len(), count * tiny.num_layers, "{name} in {count} shards");
        }
    }
}

#[test]
fn shards_are_described_with_the_memory_that_they_take() {
    let weights = load(&models()[0]);
    let need = |shards| Need::of(&weights, &options(shards, None)).unwrap();
    let [one, two, eight] = [1, 2, 8].map(need);
    assert_eq!(two.kv_block, one.kv_block);
    assert_eq!(eight.kv_block, 4 * one.kv_block, "four copies of each of the two heads of keys and values");
    assert!(two.weights > one.weights && two.weights < 2 * one.weights, "tables are not cut");
}

/// The bytes of 32 weights of the matrices.
fn weights_bytes(tiny: &TinyModel) -> usize {
    32 / tiny.quant.block_size.min(32) * tiny.quant.block_bytes
}

/// The columns of all shards are those of the whole matrix, in whole blocks of each row.
#[test]
fn columns_of_shards_are_cut_from_the_file() {
    for tiny in models() {
        let weights = load(&tiny);
        let whole = in_shards(&weights, 1).unwrap().1;
        for count in [2, 4, 8] {
            let cut = in_shards(&weights, count).unwrap().1;
            let bytes = |program: &DeviceProgram, name: &str| {
                let of: Vec<_> = program.tensors.iter().filter(|tensor| tensor.name == name).collect();
                of.iter().map(|tensor| (tensor.desc.rows as usize, tensor.parts(&weights).concat())).collect::<Vec<_>>()
            };
            for name in ["blk.0.attn_output.weight", "blk.1.ffn_down.weight"] {
                let (parts, all) = (bytes(&cut, name), bytes(&whole, name));
                let is_long = all[0].1.len() >= sys::PEN_HALVES_COLUMNS as usize * all[0].0 * weights_bytes(&tiny) / 32;
                assert_eq!(parts.len(), if count == 2 && is_long { 2 } else { 8 }, "{} {name}", tiny.name());
                let (rows, expected) = &all[0];
                let row = |part: &(usize, Vec<u8>), row: usize| {
                    let each = part.1.len() / part.0;
                    part.1[row * each..][..each].to_vec()
                };
                let joined: Vec<u8> = (0..*rows).flat_map(|at| parts.iter().flat_map(move |part| row(part, at))).collect();
                assert!(joined == *expected, "{} {name} in {count} shards", tiny.name());
            }
        }
    }
}

#[test]
fn what_a_gpu_cannot_cut_is_refused_by_name() {
    let refused = |tiny: &TinyModel, count| match in_shards(&load(tiny), count) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{} in {count} shards", tiny.name()),
    };
    let plain = models()[1].clone();
    let other = TinyModel { ffn_dim: 8384, ..plain.clone() };
    let expected = "op linear in layer 0 on a GPU in 2 shards: the 8384 columns of blk.0.ffn_down.weight have other slices";
    assert!(refused(&other, 2).contains(expected), "{}", refused(&other, 2));
    let blocks = TinyModel { quant: QUANTS.iter().find(|row| row.name == "Q4_K").unwrap(), ..plain.clone() };
    let expected = "columns 0 to 128 of blk.0.attn_output.weight are no whole blocks of 256";
    assert!(refused(&blocks, 4).contains(expected), "{}", refused(&blocks, 4));
    let long = TinyModel { num_heads: 32, head_dim: 256, ffn_dim: 8192, ..blocks };
    assert!(in_shards(&load(&long), 2).is_ok(), "two halves are whole blocks");
    let routed = TinyModel { experts: Some(model::Experts { count: 8, ..TinyModel::experts(plain.arch) }), ..plain.clone() };
    assert!(refused(&routed, 2).contains("op experts in layer 0 on a GPU in 2 shards"), "{}", refused(&routed, 2));
    let narrow = TinyModel { head_dim: 24, num_heads: 8, ffn_dim: 1024, ..plain };
    let why = refused(&narrow, 8);
    assert!(why.contains("slices at most") || why.contains("take another kernel"), "{why}");
}

fn open(tiny: &TinyModel, shards: usize, layers: Option<std::ops::Range<usize>>) -> CudaEngine {
    let mut engine = CudaEngine::new(Context::create(0).unwrap(), 0, load(tiny), &options(shards, layers)).unwrap();
    let num_blocks = engine.kv_capacity().num_blocks;
    assert_eq!(engine.resize_cache(num_blocks).unwrap(), num_blocks);
    engine
}

/// Prompts of several lengths, alone and together, and decode steps of 1, 4 and 40 sequences: (slot, first position, number of rows).
fn script() -> Vec<Vec<(u32, u32, u32)>> {
    let lengths = [1, 7, 64, 300];
    let mut steps: Vec<Vec<_>> = (0..4).map(|slot| vec![(slot, 0, lengths[slot as usize])]).collect();
    steps.push(vec![(3, 300, 1)]);
    for step in 0..2 {
        steps.push((0..4).map(|slot| (slot, lengths[slot as usize] + step + u32::from(slot == 3), 1)).collect());
    }
    steps.push((4..40).map(|slot| (slot, 0, 3)).collect());
    let length = |slot: u32| if slot < 4 { lengths[slot as usize] + 2 + u32::from(slot == 3) } else { 3 };
    for step in 0..6 {
        steps.push((0..40).map(|slot| (slot, length(slot) + step, 1)).collect());
    }
    steps
}

fn run(engine: &mut CudaEngine, batch: &Batch) -> StepOutput {
    let (mut out, step) = (StepOutput::default(), engine.submit(batch).unwrap());
    engine.collect(step, &mut out).unwrap();
    out
}

/// The bits of each step's logits. The last steps, whose logits are not asked for, run as graphs and give the ids that they sample.
fn bits(mut step: impl FnMut(&Batch) -> StepOutput, capacity: KvCapacity, tokens: bool) -> Vec<Vec<u32>> {
    let (mut tables, script) = (BlockTables::new(capacity, 40), script());
    let mut all = Vec::new();
    for (i, runs) in script.iter().enumerate() {
        let mut batch = batch(&mut tables, runs);
        if tokens {
            batch.inputs = (batch.inputs.iter().zip(&batch.positions))
                .map(|(&input, at)| if matches!(input, Input::Sampled(_)) { Input::Token(at * 13 % 300) } else { input })
                .collect();
        }
        batch.want_logits = i + 3 < script.len();
        let out = step(&batch);
        let ids = out.sampled.iter().map(|sampled| if let crate::Sampled::Token(id) = sampled { *id } else { u32::MAX });
        all.push(out.logits.iter().flatten().map(|logit| logit.to_bits()).chain(ids).collect());
    }
    all
}

fn compare(what: &str, got: &[Vec<u32>], whole: &[Vec<u32>]) {
    for (i, (got, whole)) in got.iter().zip(whole).enumerate() {
        let differ = got.iter().zip(whole).filter(|(a, b)| a != b).count();
        assert!(got.len() == whole.len() && differ == 0, "{what}: {differ} of {} numbers differ in step {i}", whole.len());
    }
    assert_eq!(got.len(), whole.len(), "{what}");
}

#[test]
#[ignore = "needs a GPU"]
fn shards_give_the_bits_of_the_whole_on_the_gpu() {
    for tiny in models() {
        let of = |shards| {
            let mut engine = open(&tiny, shards, None);
            let capacity = engine.kv_capacity();
            bits(|batch| run(&mut engine, batch), capacity, false)
        };
        let whole = of(1);
        assert!(whole[0].iter().all(|&logit| f32::from_bits(logit).is_finite()), "{}", tiny.name());
        for shards in [2, 4, 8] {
            compare(&format!("{} in {shards} shards", tiny.name()), &of(shards), &whole);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn ranges_of_layers_give_the_bits_of_the_whole_on_the_gpu() {
    let routed = ["qwen2moe", "qwen3moe"].map(|name| TinyModel { optional: true, ..TinyModel::new(Arch::by_name(name).unwrap()) });
    for tiny in models().into_iter().chain(routed) {
        let (mut engine, end, cut) = (open(&tiny, 1, None), tiny.num_layers, tiny.num_layers / 2);
        let capacity = engine.kv_capacity();
        let whole = bits(|batch| run(&mut engine, batch), capacity.clone(), true);
        for shards in [1, 2] {
            if shards > 1 && tiny.experts.is_some() {
                continue;
            }
            let [mut first, mut second] = [0..cut, cut..end].map(|layers| open(&tiny, shards, Some(layers)));
            let both = |batch: &Batch| {
                let begin = Batch { sampled_rows: Vec::new(), want_logits: false, ..batch.clone() };
                let embeddings = run(&mut first, &begin).stream;
                assert_eq!(embeddings.len(), batch.num_tokens() * first.spec().hidden_dim);
                let inputs = (0..batch.num_tokens() as u32).map(Input::Embedding).collect();
                run(&mut second, &Batch { inputs, embeddings, ..batch.clone() })
            };
            compare(&format!("{} in two ranges of {shards} shards", tiny.name()), &bits(both, capacity.clone(), true), &whole);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_range_of_layers_refuses_what_it_does_not_compute_on_the_gpu() {
    let tiny = models().remove(1);
    let refusal = |layers: std::ops::Range<usize>, batch: &Batch| {
        let mut engine = open(&tiny, 1, Some(layers));
        let submitted = engine.submit(batch);
        submitted.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let batch = batch(&mut BlockTables::new(open(&tiny, 1, None).kv_capacity(), 1), &[(0, 0, 3)]);
    assert!(refusal(0..1, &batch).contains("without a head"), "{}", refusal(0..1, &batch));
    assert!(refusal(1..2, &batch).contains("row 0 is no embedding"), "{}", refusal(1..2, &batch));
}
