//! Tests recurrent state on the CPU: copies, zeros at position 0, and several sequences per batch.

use std::sync::Arc;

use super::testing::{open, options};
use super::{CpuEngine, CpuOptions, simd};
use crate::{Batch, CachePart, CacheType, Engine, EngineError, Input, KvCapacity, SlotInit, StepOutput};
use fixtures::architectures::architectures;
use gguf::GgufBuilder;
use logits::SamplingParams;

/// One model per family of recurrent mixers.
const MODELS: &[&str] = &["lfm2-dense", "mamba2-dense", "jamba-dense", "qwen35-dense", "minimax-01-moe"];
/// The number of KV blocks per sequence.
const BLOCKS: u32 = 3;

/// Some rows of one sequence: its number, which is also that of its sequence slot and of its blocks; its state slot; and its ids so far, of
/// which the first `start` were computed in earlier steps.
struct Rows<'a> {
    sequence: u32,
    state: u32,
    start: usize,
    ids: &'a [u32],
}

fn file(name: &str) -> GgufBuilder {
    let (_, models) = architectures();
    models.iter().find(|model| model.name == name).unwrap().build()
}

fn engine(file: &GgufBuilder) -> CpuEngine {
    open(file, &CpuOptions { num_blocks: 12, ..options() }, simd::dispatch::available()[0]).unwrap()
}

fn ids(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 31 + seed * 17 + 5) % 128).collect()
}

/// A batch of some sequences. The last row of each is sampled.
fn batch(parts: &[Rows]) -> Batch {
    let mut all = Batch { cu_seqlens_q: vec![0], max_blocks: BLOCKS as usize, want_logits: true, ..Batch::default() };
    for part in parts {
        let (start, end, params) = (part.start as u32, part.ids.len() as u32, Arc::new(SamplingParams::greedy()));
        all.inputs.extend(part.ids[part.start..].iter().map(|&id| Input::Token(id)));
        all.positions.extend(start..end);
        all.cu_seqlens_q.push(all.inputs.len() as u32);
        all.context_lens.push(end);
        all.slot_mapping.extend((start..end).map(|position| part.sequence * BLOCKS * 32 + position));
        all.block_tables.extend(part.sequence * BLOCKS..(part.sequence + 1) * BLOCKS);
        all.sequence_slots.push(part.sequence);
        all.state_slots.push(part.state);
        all.init.push(SlotInit { slot: part.sequence, params, prompt: part.ids.into(), generated: Vec::new() });
        all.sampled_rows.push(all.inputs.len() as u32 - 1);
        all.num_logprobs.push(None);
    }
    all
}

/// The bits of the logits after each sequence.
fn step(engine: &mut CpuEngine, batch: &Batch) -> Vec<Vec<u32>> {
    let mut out = StepOutput::default();
    let step = engine.submit(batch).unwrap();
    engine.collect(step, &mut out).unwrap();
    out.logits.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// A state that differs from that of every other slot and layer.
fn mark(slot: u32, layer: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 7) as f32 + (10 * slot + 100 * layer as u32) as f32).collect()
}

#[test]
fn states_are_copied_before_a_step_and_reset_at_position_zero() {
    for name in MODELS {
        let mut engine = engine(&file(name));
        let KvCapacity { num_blocks, num_state_slots, .. } = engine.kv_capacity();
        assert_eq!((num_blocks, num_state_slots), (12, 5));
        let widths: Vec<usize> = engine.spec().state_widths().collect();
        assert!(widths.iter().any(|&width| width > 0), "{name}");
        let prompt = ids(1, 20);
        let alone = step(&mut engine, &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &prompt }]));
        let fresh: Vec<Vec<f32>> = (0..widths.len()).map(|layer| engine.state(0, layer).to_vec()).collect();
        for (layer, &width) in widths.iter().enumerate() {
            (0..5).for_each(|slot| engine.state(slot, layer).copy_from_slice(&mark(slot, layer, width)));
        }
        // the new sequence in slot 2 starts from zeros, and its slot is copied to slot 4 before that
        let new = batch(&[Rows { sequence: 1, state: 2, start: 0, ids: &prompt }]);
        assert_eq!(step(&mut engine, &Batch { state_copies: vec![(2, 4), (1, 3)], ..new.clone() }), alone, "{name}");
        for (layer, &width) in widths.iter().enumerate() {
            let expected =
                [mark(0, layer, width), mark(1, layer, width), fresh[layer].clone(), mark(1, layer, width), mark(2, layer, width)];
            let states = [0, 1, 2, 3, 4].map(|slot| engine.state(slot, layer).to_vec());
            assert_eq!(states, expected, "{name}, layer {layer}");
        }
        let none = Batch { state_slots: Vec::new(), ..new };
        assert!(matches!(engine.submit(&none), Err(EngineError::InvalidBatch(_))), "{name}");
    }
}

#[test]
fn a_cache_that_has_left_its_engine_comes_back_with_the_same_bits() {
    let parts =
        |sequence: u32, state| [CachePart::Block(sequence * BLOCKS), CachePart::Block(sequence * BLOCKS + 1), CachePart::State(state)];
    for (name, cache_type) in MODELS.iter().flat_map(|name| CacheType::ALL.map(|cache_type| (name, cache_type))) {
        let options = CpuOptions { num_blocks: 12, cache_type, ..options() };
        let mut engines = [0, 1].map(|_| open(&file(name), &options, simd::dispatch::available()[0]).unwrap());
        let [first, second] = &mut engines;
        let all = ids(2, 85);
        step(first, &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &all[..64] }]));
        let form = first.portable_cache().unwrap();
        assert_eq!(second.portable_cache(), Some(form.clone()));
        for (from, to) in parts(0, 0).into_iter().zip(parts(1, 3)) {
            let mut bytes = Vec::new();
            first.export(from, &mut bytes).unwrap();
            let len = if matches!(from, CachePart::Block(_)) { form.block_bytes } else { form.state_bytes };
            assert!(bytes.len() == len && (len == 0 || bytes.iter().any(|&byte| byte != 0)), "{name}, {from:?}");
            assert!(len == 0 || second.import(to, &bytes[1..]).is_err(), "{name}: cut");
            second.import(to, &bytes).unwrap();
        }
        let expected = step(first, &batch(&[Rows { sequence: 0, state: 0, start: 64, ids: &all }]));
        assert_eq!(step(second, &batch(&[Rows { sequence: 1, state: 3, start: 64, ids: &all }])), expected, "{name} {cache_type}");
        assert!(first.export(CachePart::Block(12), &mut Vec::new()).is_err() || form.block_bytes == 0);
    }
}

#[test]
fn a_sequence_goes_on_from_a_copied_state() {
    for name in MODELS {
        let mut engine = engine(&file(name));
        let all = ids(2, 45);
        step(&mut engine, &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &all[..32] }]));
        let expected = step(&mut engine, &batch(&[Rows { sequence: 0, state: 0, start: 32, ids: &all }]));
        // the state after the first block is kept in slot 1, and another sequence continues from that state
        step(&mut engine, &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &all[..32] }]));
        let other = batch(&[Rows { sequence: 1, state: 3, start: 32, ids: &all }]);
        let copies = Batch { copies: vec![(0, BLOCKS)], state_copies: vec![(0, 3)], ..other };
        assert_eq!(step(&mut engine, &copies), expected, "{name}");
    }
}

#[test]
fn sequences_side_by_side_give_the_bits_of_each_alone() {
    for name in MODELS {
        let mut engine = engine(&file(name));
        let all = [ids(3, 40), ids(4, 23), ids(5, 2)];
        let cuts = [17, 22, 1];
        let part = |i: usize, state: u32, start: usize, end: usize| Rows { sequence: i as u32, state, start, ids: &all[i][..end] };
        let alone: Vec<_> = (0..3)
            .map(|i| {
                let first = step(&mut engine, &batch(&[part(i, 1, 0, cuts[i])]));
                let second = step(&mut engine, &batch(&[part(i, 1, cuts[i], all[i].len())]));
                [first, second].concat()
            })
            .collect();
        // the state slots are in another order than the sequences
        let states = [4, 0, 2];
        let first = step(&mut engine, &batch(&[0, 1, 2].map(|i| part(i, states[i], 0, cuts[i]))));
        let second = step(&mut engine, &batch(&[2, 0, 1].map(|i| part(i, states[i], cuts[i], all[i].len()))));
        for i in 0..3 {
            assert_eq!([&first[i], &second[(i + 1) % 3]], [&alone[i][0], &alone[i][1]], "{name}, sequence {i}");
        }
    }
}

/// The first files of Qwen3-Next hold query, key, values and gates of each key head together, in one tensor.
#[test]
fn interleaved_projections_give_the_bits_of_separate_ones() {
    let mut old = file("qwen3next-moe");
    let bytes = |file: &GgufBuilder, name: &str| file.tensors.iter().find(|tensor| tensor.name == name).unwrap().bytes.clone();
    let (qkv, z) = (bytes(&old, "blk.0.attn_qkv.weight"), bytes(&old, "blk.0.attn_gate.weight"));
    // two key heads with one value head each, 128 rows per head
    let head = qkv.len() / 6;
    let heads = (0..2).flat_map(|i| [&qkv[i * head..], &qkv[(2 + i) * head..], &qkv[(4 + i) * head..], &z[i * head..]]);
    let interleaved: Vec<u8> = heads.flat_map(|rows| rows[..head].to_vec()).collect();
    old.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.ssm_in.weight").unwrap().bytes = interleaved;
    let both = step(&mut engine(&old), &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &ids(1, 20) }]));
    old.tensors.retain(|tensor| !["blk.0.attn_qkv.weight", "blk.0.attn_gate.weight"].contains(&tensor.name.as_str()));
    let without = step(&mut engine(&old), &batch(&[Rows { sequence: 0, state: 0, start: 0, ids: &ids(1, 20) }]));
    assert_eq!(without, both);
}

/// Rows behind a wrong draft leave no trace in the state, and more drafts than states that are kept are refused.
#[test]
fn a_state_goes_back_behind_a_wrong_draft() {
    for name in MODELS {
        let options = CpuOptions { num_blocks: 12, draft_states: 3, ..options() };
        let mut engine = open(&file(name), &options, simd::dispatch::available()[0]).unwrap();
        let ids = ids(3, 20);
        let prompt = batch(&[Rows { sequence: 0, state: 1, start: 0, ids: &ids }]);
        step(&mut engine, &prompt);
        let next = ids[0];
        let one = Rows { sequence: 0, state: 1, start: 20, ids: &[&ids[..], &[next]].concat() };
        let mut drafted = batch(&[Rows { sequence: 0, state: 1, start: 20, ids: &[&ids[..], &[next, 5, 6, 7]].concat() }]);
        drafted.sampled_rows = vec![0, 1, 2, 3];
        drafted.num_logprobs = vec![None; 4];
        let states = |engine: &mut CpuEngine| -> Vec<u32> {
            let layers = engine.spec().num_layers();
            (0..layers).flat_map(|layer| engine.state(1, layer).iter().map(|x| x.to_bits()).collect::<Vec<_>>()).collect()
        };
        let before = states(&mut engine);
        let mut out = StepOutput::default();
        let id = engine.submit(&drafted).unwrap();
        engine.collect(id, &mut out).unwrap();
        let num_counted = out.sampled.iter().filter(|sampled| **sampled != crate::Sampled::Skipped).count();
        assert_eq!(num_counted, 1, "{name}: the guesses are wrong");
        let after = states(&mut engine);
        assert_ne!(before, after, "{name}");
        step(&mut engine, &prompt);
        assert_eq!(states(&mut engine), before, "{name}");
        step(&mut engine, &batch(&[one]));
        assert_eq!(states(&mut engine), after, "{name}: the state after one row");
        let mut long = batch(&[Rows { sequence: 0, state: 1, start: 20, ids: &[&ids[..], &[next, 5, 6, 7, 8]].concat() }]);
        long.sampled_rows = vec![0, 1, 2, 3, 4];
        long.num_logprobs = vec![None; 5];
        let error = engine.submit(&long).unwrap_err().to_string();
        assert!(error.contains("4 drafts of sequences with states, expected at most 3"), "{error}");
    }
}
