//! Checks that a weight that is not finite, in any tensor of any architecture, shows in the logits. No kernel may turn it into a finite
//! number.

use std::sync::Arc;

use super::CpuOptions;
use super::simd::{Kernels, dispatch};
use super::testing::{open, options};
use crate::{Batch, Engine, Input, Sampled, SlotInit, StepOutput};
use gguf::GgufBuilder;
use logits::SamplingParams;
use model::Experts;
use model::testing::TinyModel;

/// The tokens of the prompt. The embedding of the first one is broken.
const PROMPT: [u32; 5] = [0, 31, 62, 93, 124];

/// The outcome of sampling after [`PROMPT`]. None if the model is refused.
fn sampled(file: &GgufBuilder, kernels: &'static Kernels) -> Option<Sampled> {
    let options = CpuOptions { threads: 1, context: 32, num_blocks: 16, max_batch_tokens: 8, ..options() };
    let mut engine = open(file, &options, kernels).ok()?;
    let rows = PROMPT.len() as u32;
    let params = Arc::new(SamplingParams::greedy());
    let batch = Batch {
        init: vec![SlotInit { slot: 0, params, prompt: PROMPT.into(), generated: Vec::new() }],
        inputs: PROMPT.map(Input::Token).to_vec(),
        positions: (0..rows).collect(),
        cu_seqlens_q: vec![0, rows],
        context_lens: vec![rows],
        slot_mapping: (0..rows).collect(),
        block_tables: vec![0],
        max_blocks: 1,
        sequence_slots: vec![0],
        sampled_rows: vec![rows - 1],
        ..Batch::default()
    };
    let batch = batch.in_all_groups(&engine.kv_capacity());
    let mut out = StepOutput::default();
    let step = engine.submit(&batch).unwrap();
    engine.collect(step, &mut out).unwrap();
    Some(out.sampled[0])
}

/// Whether an infinite weight may leave the logits finite. A logit of minus infinity means that its token never comes. An infinite gate
/// means that the shared expert always or never counts.
fn may_be_infinite(tensor: &str) -> bool {
    tensor == "output.weight" || tensor == "token_embd.weight" || tensor.contains("ffn_gate_inp_shexp")
}

/// Copies `whole` with `value` as the first weight of a tensor, or of every expert if the tensor is a stack of experts.
fn with_broken_tensor(whole: &GgufBuilder, index: usize, value: f32) -> GgufBuilder {
    let mut broken = whole.clone();
    let tensor = &mut broken.tensors[index];
    let num_matrices = tensor.dims.get(2).map_or(1, |&count| count as usize);
    let matrix_bytes = tensor.bytes.len() / num_matrices;
    for start in (0..tensor.bytes.len()).step_by(matrix_bytes) {
        tensor.bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
    }
    broken
}

/// Covers every tensor of every architecture. The first architecture runs each value on each set of kernels. The others run one value on
/// one set per tensor, in rotation.
#[test]
fn a_weight_that_is_not_finite_shows_in_the_logits() {
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let sets = dispatch::available();
    let all: Vec<_> = values.iter().flat_map(|&value| sets.iter().map(move |&kernels| (value, kernels))).collect();
    let (mut refused, mut turn) = (Vec::new(), 0);
    for (number, tiny) in TinyModel::all().enumerate() {
        let experts = tiny.experts.map(|experts| Experts { ffn_dim: 64, shared_ffn_dim: experts.shared_ffn_dim.min(64), ..experts });
        let tiny = TinyModel { hidden_dim: 64, head_dim: 16, ffn_dim: 64, experts, ..tiny };
        let whole = tiny.build();
        assert!(matches!(sampled(&whole, sets[0]), Some(Sampled::Token(_))), "{}", tiny.name());
        for (index, tensor) in whole.tensors.iter().enumerate() {
            turn += 1;
            let cases = if number == 0 { &all[..] } else { &all[turn % all.len()..][..1] };
            for &(value, kernels) in cases {
                let value = if may_be_infinite(&tensor.name) { f32::NAN } else { value };
                match sampled(&with_broken_tensor(&whole, index, value), kernels) {
                    None => refused.push(tensor.name.clone()),
                    got => assert_eq!(got, Some(Sampled::NotFinite), "{value} in {} of {}, {}", tensor.name, tiny.name(), kernels.name),
                }
            }
        }
    }
    assert!(refused.iter().all(|name| name.starts_with("rope_")), "only factors of frequencies are checked at load: {refused:?}");
}
