//! Compares draft heads with llama.cpp's, which share no line with ours.

use std::sync::Arc;

use super::super::testing::{open, options};
use super::super::{CpuEngine, CpuOptions, simd};
use crate::{Batch, DraftRequest, Engine, Input, SlotInit, StepOutput};
use fixtures::architectures::architectures;
use fixtures::draft_heads::{add_draft_head, draft_heads};
use gguf::GgufBuilder;
use logits::SamplingParams;

/// The largest difference of a logit.
const BOUND: f32 = 1e-4;
const BLOCKS: u32 = 8;

fn engine(file: &GgufBuilder) -> Result<CpuEngine, String> {
    let options = CpuOptions { context: 256, num_blocks: 8 * 16, max_batch_tokens: 256, draft_head: true, ..options() };
    open(file, &options, simd::dispatch::available()[0])
}

/// Runs a prompt in chunks of at most `chunk` rows, in a sequence slot. Returns the head's logits at the last position, and the next token.
fn read(engine: &mut CpuEngine, slot: u32, prompt: &[u32], chunk: usize) -> (Vec<f32>, u32) {
    let mut out = StepOutput::default();
    let init = SlotInit { slot, params: Arc::new(SamplingParams::greedy()), prompt: prompt.into(), generated: Vec::new() };
    let first = slot * BLOCKS;
    let mut start = 0;
    for (i, rows) in prompt.chunks(chunk).enumerate() {
        let end = start + rows.len();
        let last = end == prompt.len();
        let batch = Batch {
            inputs: rows.iter().map(|&id| Input::Token(id)).collect(),
            positions: (start as u32..end as u32).collect(),
            cu_seqlens_q: vec![0, rows.len() as u32],
            context_lens: vec![end as u32],
            slot_mapping: (start as u32..end as u32).map(|at| first * 32 + at).collect(),
            block_tables: (first..first + BLOCKS).collect(),
            max_blocks: BLOCKS as usize,
            sequence_slots: vec![slot],
            state_slots: if engine.spec().is_recurrent() { vec![slot] } else { Vec::new() },
            init: if i == 0 { vec![init.clone()] } else { Vec::new() },
            sampled_rows: if last { vec![rows.len() as u32 - 1] } else { Vec::new() },
            want_draft_logits: last,
            ..Batch::default()
        };
        let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
        engine.collect(step, &mut out).unwrap();
        start = end;
    }
    let crate::Sampled::Token(next) = out.sampled[0] else { panic!("{:?}", out.sampled) };
    (out.draft_logits.remove(0), next)
}

/// A request for guesses behind a prompt that [`read`] ran.
fn request(engine: &CpuEngine, slot: u32, prompt: &[u32], token: u32, most: usize) -> DraftRequest {
    let index = prompt.len() as u32;
    let part = (engine.kv_capacity().num_blocks / engine.kv_capacity().groups.len()) as u32;
    let first = slot * BLOCKS + part * engine.info().draft_head.unwrap().group as u32;
    DraftRequest { slot, token, index, position: index, blocks: (first..first + index.div_ceil(32)).collect(), most }
}

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).fold(0.0, |a, (x, y)| if x.is_nan() { f32::NAN } else { f32::max(a, (x - y).abs()) })
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn draft_heads_have_the_logits_and_drafts_of_the_reference() {
    let (prompts, models) = draft_heads();
    assert_eq!(models.len(), 4);
    for model in models {
        let mut engine = engine(&model.model.build()).unwrap();
        let name = &model.model.name;
        for (prompt, due) in prompts.iter().zip(&model.results) {
            let (logits, next) = read(&mut engine, 1, prompt, prompt.len());
            let difference = worst(&logits, &due.logits);
            assert!(difference < BOUND, "{name}, {} ids: {difference:.1e}", prompt.len());
            assert_eq!(next, due.next, "{name}");
            for chunk in [1, 13, 32] {
                assert_eq!(bits(&read(&mut engine, 0, prompt, chunk).0), bits(&logits), "{name}: chunks of {chunk}");
            }
            for (depth, (id, expected)) in due.drafts.iter().enumerate() {
                let asked = request(&engine, 1, prompt, next, depth + 1);
                let guess = engine.draft(&[asked]).unwrap().remove(0);
                assert_eq!(guess[depth], *id, "{name}, {} ids, draft {depth}", prompt.len());
                let (head, _) = engine.forward.draft_head().unwrap();
                let difference = worst(head.logits.row(0), expected);
                assert!(difference < BOUND, "{name}, {} ids, draft {depth}: {difference:.1e}", prompt.len());
            }
        }
    }
}

/// Guesses are those of a sequence alone, whatever is asked for with it, and change no later result.
#[test]
fn guesses_do_not_depend_on_others_and_leave_no_trace() {
    let (prompts, models) = draft_heads();
    for model in models {
        let mut engine = engine(&model.model.build()).unwrap();
        // two of them end where a block does
        let texts = [&prompts[2][..64], &prompts[1][..32], &prompts[2][..61], &prompts[0][..]];
        let read_all: Vec<_> = texts.iter().enumerate().map(|(slot, text)| read(&mut engine, slot as u32, text, 64)).collect();
        let asked: Vec<_> = texts
            .iter()
            .enumerate()
            .map(|(slot, text)| request(&engine, slot as u32, text, read_all[slot].1, [3, 16, 9, 1][slot]))
            .collect();
        let alone: Vec<_> = asked.iter().map(|one| engine.draft(std::slice::from_ref(one)).unwrap().remove(0)).collect();
        assert_eq!(engine.draft(&asked).unwrap(), alone, "{}", model.model.name);
        assert_eq!(alone.iter().map(Vec::len).collect::<Vec<_>>(), [3, 16, 9, 1]);
        // a guess begins like a shorter one, and reading on is not disturbed
        let longer = engine.draft(&[DraftRequest { most: 12, ..asked[0].clone() }]).unwrap().remove(0);
        assert_eq!(longer[..3], alone[0]);
        for (slot, text) in texts.iter().enumerate() {
            let again = read(&mut engine, slot as u32, text, 16);
            assert_eq!((bits(&again.0), again.1), (bits(&read_all[slot].0), read_all[slot].1), "{}", model.model.name);
        }
    }
}

/// A head that is asked late knows as much as one that read the whole text at once.
#[test]
fn a_head_that_was_not_asked_catches_up() {
    let (prompts, models) = draft_heads();
    for model in models {
        let mut engine = engine(&model.model.build()).unwrap();
        let text = &prompts[2];
        for (num_prompt, num_more) in [(20, 1), (31, 2), (32, 40), (7, 120), (64, 33)] {
            let whole = &text[..num_prompt + num_more];
            let next = read(&mut engine, 0, whole, 512).1;
            let due = engine.draft(&[request(&engine, 0, whole, next, 4)]).unwrap();
            // as a sequence generates: a row per step, some with a wrong draft behind it
            read(&mut engine, 1, &text[..num_prompt], 16);
            for at in num_prompt..whole.len() {
                generate(&mut engine, 1, &whole[..=at], at % 3 == 0);
            }
            let asked = request(&engine, 1, whole, next, 4);
            assert_eq!(engine.draft(std::slice::from_ref(&asked)).unwrap(), due, "{}: {num_prompt} + {num_more}", model.model.name);
            let logits = bits(engine.forward.draft_head().unwrap().0.logits.row(0));
            assert_eq!(engine.draft(&[asked]).unwrap(), due, "asked again");
            engine.draft(&[request(&engine, 0, whole, next, 4)]).unwrap();
            assert_eq!(bits(engine.forward.draft_head().unwrap().0.logits.row(0)), logits, "{}", model.model.name);
        }
    }
}

/// Runs the last token of a sequence, whose other rows ran before, and perhaps a wrong draft.
fn generate(engine: &mut CpuEngine, slot: u32, ids: &[u32], has_draft: bool) {
    let has_draft = has_draft && !engine.spec().is_recurrent();
    let (first, start, count) = (slot * BLOCKS, ids.len() as u32 - 1, 1 + u32::from(has_draft));
    let batch = Batch {
        inputs: [ids[start as usize], 3][..count as usize].iter().map(|&id| Input::Token(id)).collect(),
        positions: (start..start + count).collect(),
        cu_seqlens_q: vec![0, count],
        context_lens: vec![start + count],
        slot_mapping: (start..start + count).map(|at| first * 32 + at).collect(),
        block_tables: (first..first + BLOCKS).collect(),
        max_blocks: BLOCKS as usize,
        sequence_slots: vec![slot],
        state_slots: if engine.spec().is_recurrent() { vec![slot] } else { Vec::new() },
        sampled_rows: (0..count).collect(),
        ..Batch::default()
    };
    let step = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
    engine.collect(step, &mut StepOutput::default()).unwrap();
}

/// Any family's layer can be a head, if the file has one.
#[test]
fn heads_of_other_families_run() {
    let (prompts, models) = architectures();
    let names = [
        "qwen3next-moe",
        "hy_v3-moe",
        "mimo2-moe",
        "cohere2moe-moe",
        "bailingmoe2-moe",
        "exaone-moe-moe",
        "qwen3-dense",
        "kimi-linear-moe",
    ];
    for name in names {
        let model = models.iter().find(|model| model.name == name).unwrap_or_else(|| panic!("no model {name}"));
        let mut engine = engine(&add_draft_head(model.build())).unwrap_or_else(|error| panic!("{name}: {error}"));
        let prompt = prompts.iter().find(|prompt| prompt.len() == 80).unwrap();
        let (logits, next) = read(&mut engine, 0, prompt, 80);
        assert!(logits.iter().all(|x| x.is_finite()), "{name}");
        assert_eq!(bits(&read(&mut engine, 1, prompt, 7).0), bits(&logits), "{name}");
        let asked = request(&engine, 1, prompt, next, 5);
        assert_eq!(engine.draft(&[asked]).unwrap()[0].len(), 5, "{name}");
    }
}

#[test]
fn a_head_that_does_not_fit_is_refused_by_its_tensor() {
    let (_, models) = draft_heads();
    let file = |name: &str| models.iter().find(|model| model.model.name == name).unwrap().model.build();
    let edited = |model: &str, tensor: &str, edit: &dyn Fn(&mut GgufBuilder, usize)| {
        let mut file = file(model);
        let index = file.tensors.iter().position(|of| of.name == tensor).unwrap();
        edit(&mut file, index);
        engine(&file).err().unwrap_or_else(|| panic!("{tensor} is taken"))
    };
    let halve = |file: &mut GgufBuilder, index: usize| {
        let tensor = &mut file.tensors[index];
        tensor.dims[0] /= 2;
        let len = tensor.bytes.len() / 2;
        tensor.bytes.truncate(len);
    };
    for (model, tensor) in [
        ("qwen35", "blk.2.nextn.eh_proj.weight"),
        ("glm4moe", "blk.2.nextn.hnorm.weight"),
        ("deepseek2", "blk.2.nextn.embed_tokens.weight"),
        ("deepseek2", "blk.2.nextn.shared_head_head.weight"),
        ("qwen35moe", "blk.2.nextn.shared_head_norm.weight"),
        ("qwen35moe", "blk.2.attn_k.weight"),
        ("glm4moe", "blk.2.ffn_down_exps.weight"),
    ] {
        let error = edited(model, tensor, &halve);
        assert!(error.contains("the draft head: ") && error.contains(tensor), "{error}");
    }
    for (model, tensor) in
        [("qwen35", "blk.2.nextn.enorm.weight"), ("glm4moe", "blk.2.ffn_gate_inp.weight"), ("qwen35", "blk.2.ffn_up.weight")]
    {
        let error = edited(model, tensor, &|file, index| drop(file.tensors.remove(index)));
        assert!(error.contains(&format!("{tensor} is missing")), "{error}");
    }
    // without heads, the model runs as before
    let mut plain = file("qwen35");
    plain.tensors.retain(|tensor| !tensor.name.contains("nextn"));
    assert_eq!(engine(&plain).unwrap().info().draft_head, None);
}
