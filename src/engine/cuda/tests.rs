//! Steps whose rows come from the device's slots give the bits of steps whose rows come from the batch.

mod grid;
mod part;

use std::sync::Arc;

use super::*;
use crate::{BlockTables, Sampled, SlotInit};
use gguf::GgufFile;
use logits::SamplingParams;
use model::Arch;
use model::testing::TinyModel;

const STEPS: u32 = 100;

/// How the rows of decode steps reach the device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Slots,
    AllSentAgain,
    Arrays,
}

/// A sequence of each length begins. The second one pauses for some steps.
const LENGTHS: [u32; 4] = [5, 60, 31, 97];

fn open(path: &std::path::Path) -> CudaEngine {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let options = EngineOptions { context: 256, kv_tokens: 2048, max_slots: 8, max_batch_tokens: 256, ..EngineOptions::default() };
    let mut engine = CudaEngine::new(Context::create(0).unwrap(), 0, weights, &options).unwrap();
    let num_blocks = engine.kv_capacity().num_blocks;
    assert_eq!(engine.resize_cache(num_blocks).unwrap(), num_blocks);
    engine
}

/// The rows of a step: (slot, first position, number of rows).
pub fn batch(tables: &mut BlockTables, runs: &[(u32, u32, u32)]) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    for &(slot, start, count) in runs {
        let id = |at: u32| Input::Token((at * 31 + slot * 7) % 300);
        let is_decode = start > 0;
        batch.inputs.extend((start..start + count).map(|at| if is_decode { Input::Sampled(slot) } else { id(at) }));
        batch.positions.extend(start..start + count);
        batch.cu_seqlens_q.push(batch.inputs.len() as u32);
        batch.context_lens.push(start + count);
        batch.sequence_slots.push(slot);
        batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
        let params = SamplingParams { temperature: 0.9, seed: u64::from(slot), ..SamplingParams::greedy() };
        let init = SlotInit { slot, params: Arc::new(params), prompt: [].into(), generated: Vec::new() };
        batch.init.extend((start == 0).then_some(init));
    }
    let slots = batch.sequence_slots.clone();
    tables.place(&mut batch, &slots).unwrap();
    batch
}

/// Generates with two steps in flight. Returns the ids of each step and where its rows came from.
fn generate(engine: &mut CudaEngine, way: Way) -> Vec<(Vec<Sampled>, u32)> {
    let mut tables = BlockTables::new(engine.kv_capacity(), LENGTHS.len());
    let (mut lengths, mut flying, mut all) = ([0; LENGTHS.len()], VecDeque::new(), Vec::new());
    for step in 0..STEPS {
        let is_there = |slot: usize| slot != 1 || !(40..50).contains(&step);
        let runs: Vec<_> = (0..LENGTHS.len())
            .filter(|&slot| is_there(slot))
            .map(|slot| (slot as u32, lengths[slot], if lengths[slot] == 0 { LENGTHS[slot] } else { 1 }))
            .collect();
        let mut batch = batch(&mut tables, &runs);
        runs.iter().for_each(|run| lengths[run.0 as usize] += run.2);
        match way {
            Way::Slots => {}
            Way::AllSentAgain => engine.device_slots.forget(),
            Way::Arrays => batch.token_types = vec![0; batch.num_tokens()],
        }
        let id = engine.submit(&batch).unwrap();
        flying.push_back((id, engine.device_slots.source()));
        if flying.len() == MAX_IN_FLIGHT || step + 1 == STEPS {
            for (id, source) in flying.drain(..if step + 1 == STEPS { flying.len() } else { 1 }) {
                let mut out = StepOutput::default();
                engine.collect(id, &mut out).unwrap();
                all.push((out.sampled, source));
            }
        }
    }
    all
}

#[test]
#[ignore = "needs a GPU"]
fn steps_from_slots_send_nothing_and_give_the_bits_of_steps_from_arrays_on_the_gpu() {
    let dir = tempfile::tempdir().unwrap();
    for arch in ["llama", "gemma3"] {
        let path = dir.path().join(arch);
        TinyModel::new(Arch::by_name(arch).unwrap()).build().write(&path).unwrap();
        let [slots, again, arrays] = [Way::Slots, Way::AllSentAgain, Way::Arrays].map(|way| generate(&mut open(&path), way));
        let sources = |steps: &[(Vec<Sampled>, u32)]| steps.iter().map(|step| step.1).collect::<Vec<_>>();
        let ids = |steps: &[(Vec<Sampled>, u32)]| steps.iter().map(|step| step.0.clone()).collect::<Vec<_>>();
        assert_eq!(ids(&slots), ids(&arrays), "{arch}");
        assert_eq!(ids(&again), ids(&arrays), "{arch}");
        let count = |steps, source| sources(steps).iter().filter(|&&of| of == source).count();
        assert_eq!(count(&arrays, sys::PEN_FROM_ARRAYS), STEPS as usize, "{arch}");
        assert_eq!(count(&again, sys::PEN_FROM_CHANGES), STEPS as usize - 1, "{arch}");
        // The prompts, then steps with a new block, and those where a sequence pauses or comes back.
        let sent = STEPS as usize - count(&slots, sys::PEN_FROM_SLOTS);
        println!("{arch}: {sent} of {STEPS} steps sent something");
        assert!(sent < 20, "{arch}: {:?}", sources(&slots));
    }
}
