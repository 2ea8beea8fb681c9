//! Checks what both backends return for prompts (scores of their tokens, vectors), and copied blocks.

use std::path::Path;
use std::sync::Arc;

use engine::{Batch, Engine, Input, Pooling, Sampled, Scored, SlotInit, StepOutput, VectorRequest};
use gguf::GgufFile;
use logits::{Logprobs, SamplingParams};
use model::testing::TinyModel;
use model::{TensorRole, Weights};

use crate::backends::{Factory, gpu, on_cpu, on_gpu};

const VOCAB: u32 = 331;
const CHUNKS: [usize; 4] = [77, 32, 7, 1];

fn prompt() -> Vec<u32> {
    (0..77).map(|i| i * 31 % VOCAB).collect()
}

/// The rows of a sequence from position `start`, in its own sequence slot and blocks. `params` is set if the sequence is new.
struct Rows<'a> {
    slot: u32,
    blocks: &'a [u32],
    start: usize,
    ids: &'a [u32],
    params: Option<SamplingParams>,
    sample: bool,
}

fn push(batch: &mut Batch, rows: &Rows) {
    if batch.cu_seqlens_q.is_empty() {
        batch.cu_seqlens_q.push(0);
    }
    batch.max_blocks = 4;
    batch.inputs.extend(rows.ids.iter().map(|&id| Input::Token(id)));
    for at in rows.start..rows.start + rows.ids.len() {
        batch.positions.push(at as u32);
        batch.slot_mapping.push(rows.blocks[at / 32] * 32 + at as u32 % 32);
    }
    batch.cu_seqlens_q.push(batch.inputs.len() as u32);
    batch.context_lens.push((rows.start + rows.ids.len()) as u32);
    batch.block_tables.extend(rows.blocks);
    batch.sequence_slots.push(rows.slot);
    if rows.sample {
        batch.sampled_rows.push(batch.inputs.len() as u32 - 1);
    }
    let init =
        |params: &SamplingParams| SlotInit { slot: rows.slot, params: Arc::new(params.clone()), prompt: [].into(), generated: vec![] };
    batch.init.extend(rows.params.as_ref().map(init));
}

fn step(engine: &mut dyn Engine, batch: &Batch) -> StepOutput {
    let mut out = StepOutput::default();
    let step = engine.submit(&batch.clone().in_all_groups(&engine.kv_capacity())).unwrap();
    engine.collect(step, &mut out).unwrap();
    out
}

fn each_model(open: Factory, dir: &Path, check: impl Fn(&mut dyn Engine, &Path)) {
    for tiny in TinyModel::all() {
        let path = dir.join(format!("{}.gguf", tiny.name()));
        TinyModel { vocab_size: VOCAB as usize, ..tiny }.build().write(&path).unwrap();
        check(&mut *open(&path, 16), &path);
    }
}

/// Feeds a prompt in chunks. `ask` adds to each batch what is requested for its rows.
fn feed(engine: &mut dyn Engine, ids: &[u32], chunk: usize, ask: impl Fn(&mut Batch, usize, usize)) -> Vec<StepOutput> {
    let blocks = [1, 2, 3, 4];
    let step_of = |(i, piece): (usize, &[u32])| {
        let (start, mut batch) = (i * chunk, Batch::default());
        let params = (start == 0).then(SamplingParams::greedy);
        push(&mut batch, &Rows { slot: 3, blocks: &blocks, start, ids: piece, params, sample: false });
        ask(&mut batch, start, start + piece.len());
        step(engine, &batch)
    };
    ids.chunks(chunk).enumerate().map(step_of).collect()
}

/// Forces the token `next` by making it the only likely one, and returns the log-probabilities that come with it.
fn drawn(engine: &mut dyn Engine, ids: &[u32], next: u32, n: u8) -> Logprobs {
    let mut batch = Batch { num_logprobs: vec![Some(n)], ..Batch::default() };
    let params = SamplingParams { logit_bias: vec![(next, 1e6)], ..SamplingParams::greedy() };
    push(&mut batch, &Rows { slot: 0, blocks: &[5, 6, 7, 8], start: 0, ids, params: Some(params), sample: true });
    let mut out = step(engine, &batch);
    assert_eq!(out.sampled, [Sampled::Token(next)]);
    out.logprobs[0].take().unwrap()
}

fn a_prompt_is_scored(engine: &mut dyn Engine) {
    let ids = prompt();
    let num_logprobs = |row: usize| (row % 21) as u8;
    let scores = |engine: &mut dyn Engine, chunk| {
        let outs = feed(engine, &ids, chunk, |batch, start, end| {
            let scored = |at: usize| Scored { row: (at - start) as u32, id: ids[at + 1], num_logprobs: num_logprobs(at) };
            batch.scored = (start..end.min(ids.len() - 1)).map(scored).collect();
        });
        outs.into_iter().flat_map(|out| out.scored).map(Option::unwrap).collect::<Vec<_>>()
    };
    let whole = scores(engine, ids.len());
    assert_eq!(whole.len(), ids.len() - 1);
    for (at, score) in whole.iter().enumerate().step_by(5) {
        assert_eq!(*score, drawn(engine, &ids[..=at], ids[at + 1], num_logprobs(at)), "position {at}");
    }
    for chunk in CHUNKS {
        assert_eq!(scores(engine, chunk), whole, "chunks of {chunk}");
    }
}

fn vector(engine: &mut dyn Engine, ids: &[u32], pooling: Pooling, chunk: usize) -> Vec<f32> {
    let vectors = |end| vec![Some(VectorRequest { pooling, complete: end == ids.len() })];
    let mut outs = feed(engine, ids, chunk, |batch, _, end| batch.vectors = vectors(end));
    let last = outs.pop().unwrap();
    assert!(outs.iter().all(|out| out.vectors.iter().all(Vec::is_empty)), "there is no vector before the end of the prompt");
    last.vectors.into_iter().next().unwrap()
}

fn a_prompt_becomes_a_vector(engine: &mut dyn Engine, path: &Path) {
    let ids = prompt();
    let rows: Vec<Vec<f32>> = (1..=ids.len()).map(|end| vector(engine, &ids[..end], Pooling::Last, end)).collect();
    let mean = |column: usize| (rows.iter().map(|row| f64::from(row[column])).sum::<f64>() / rows.len() as f64) as f32;
    for chunk in CHUNKS {
        assert_eq!(vector(engine, &ids, Pooling::First, chunk), rows[0], "chunks of {chunk}");
        assert_eq!(vector(engine, &ids, Pooling::Last, chunk), rows[76], "chunks of {chunk}");
        assert_eq!(vector(engine, &ids, Pooling::Mean, chunk), (0..rows[0].len()).map(mean).collect::<Vec<_>>(), "chunks of {chunk}");
    }
    // The head computes the logits from the vector.
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let head = weights.get(TensorRole::Output, 0).or(weights.get(TensorRole::TokenEmbd, 0)).unwrap();
    let mut matrix = vec![0f32; head.rows * head.cols];
    (head.quant.dequantize)(weights.data(head), &mut matrix);
    let mut batch = Batch { want_logits: true, ..Batch::default() };
    push(&mut batch, &Rows { slot: 0, blocks: &[5, 6, 7, 8], start: 0, ids: &ids, params: Some(SamplingParams::greedy()), sample: true });
    let logits = step(engine, &batch).logits.remove(0);
    let size = logits.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (row, logit) in matrix.chunks_exact(head.cols).zip(&logits) {
        let product: f64 = row.iter().zip(&rows[76]).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        let product = weights.spec.final_soft_cap.map(f64::from).map_or(product, |cap| cap * (product / cap).tanh());
        assert!((product as f32 - logit).abs() < 2e-3 * size, "{product} and {logit}");
    }
}

/// Two sequences continue one prompt, the second in a copy of its last block. Each gets the logits that it gets alone.
fn a_copied_block_is_independent(engine: &mut dyn Engine) {
    let (ids, greedy) = (prompt(), || Some(SamplingParams::greedy()));
    let tails: [Vec<u32>; 2] = [vec![ids[40], 7, 8, 9], vec![ids[40], 200, 201, 202]];
    let alone = |engine: &mut dyn Engine, tail: &[u32], slot, blocks| {
        let mut batch = Batch { want_logits: true, ..Batch::default() };
        let all = [&ids[..40], tail].concat();
        push(&mut batch, &Rows { slot, blocks, start: 0, ids: &all, params: greedy(), sample: true });
        step(engine, &batch).logits.remove(0)
    };
    let expected = [alone(engine, &tails[0], 9, &[10, 11, 12, 13]), alone(engine, &tails[1], 9, &[10, 11, 12, 13])];
    let mut batch = Batch::default();
    push(&mut batch, &Rows { slot: 0, blocks: &[1, 2, 3, 4], start: 0, ids: &ids[..40], params: greedy(), sample: false });
    step(engine, &batch);
    let mut batch = Batch { copies: vec![(2, 6)], want_logits: true, ..Batch::default() };
    push(&mut batch, &Rows { slot: 0, blocks: &[1, 2, 3, 4], start: 40, ids: &tails[0], params: None, sample: true });
    push(&mut batch, &Rows { slot: 1, blocks: &[1, 6, 7, 8], start: 40, ids: &tails[1], params: greedy(), sample: true });
    assert_eq!(step(engine, &batch).logits, expected);
    // A decode step: one row per sequence.
    let mut batch = Batch { copies: vec![(6, 14)], want_logits: true, ..Batch::default() };
    push(&mut batch, &Rows { slot: 1, blocks: &[1, 6, 7, 8], start: 44, ids: &[5], params: None, sample: true });
    push(&mut batch, &Rows { slot: 2, blocks: &[1, 14, 7, 8], start: 44, ids: &[5], params: greedy(), sample: true });
    let both = step(engine, &batch).logits;
    assert_eq!(both, vec![alone(engine, &[&tails[1][..], &[5]].concat(), 9, &[10, 11, 12, 13]); 2]);
}

#[test]
fn prompts_are_scored() {
    let dir = tempfile::tempdir().unwrap();
    each_model(&on_cpu, dir.path(), |engine, _| a_prompt_is_scored(engine));
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_are_scored_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    each_model(&on_gpu, dir.path(), |engine, _| a_prompt_is_scored(engine));
}

#[test]
fn prompts_become_vectors() {
    let dir = tempfile::tempdir().unwrap();
    each_model(&on_cpu, dir.path(), a_prompt_becomes_a_vector);
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_become_vectors_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    each_model(&on_gpu, dir.path(), a_prompt_becomes_a_vector);
}

#[test]
fn sequences_with_copied_blocks_are_independent() {
    let dir = tempfile::tempdir().unwrap();
    each_model(&on_cpu, dir.path(), |engine, _| a_copied_block_is_independent(engine));
}

#[test]
#[ignore = "needs a GPU"]
fn sequences_with_copied_blocks_are_independent_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    each_model(&on_gpu, dir.path(), |engine, _| a_copied_block_is_independent(engine));
}
