//! Checks long contexts: a sequence far longer than its neighbours gives the same bits at any load, and on a GPU the same result as on the
//! CPU.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backends::{Factory, Load, divergence, gpu, greedy, prompts, run};
use crate::recorder::Seen;
use engine::{BackendKind, Engine, EngineOptions};
use gguf::GgufFile;
use model::testing::TinyModel;
use model::{Arch, Weights};

const VOCAB: u32 = 320;
/// More tokens than fit into fifteen bits.
const LONG: usize = 33_000;
/// Tokens to generate for each prompt.
const TOKENS: u32 = 100;
/// Tokens by which the second long prompt is longer than the first.
const MORE: usize = 70;
/// Longest of the short prompts.
const SHORT: usize = 150;

/// A model of one layer where a few keys have most of a row's weight, wherever they are. With smaller queries, many keys would have about
/// the same weight, and the output would be close to zero.
fn sharp_model(dir: &Path, head_dim: usize) -> PathBuf {
    let arch = Arch::by_name("qwen3").unwrap();
    let tiny = TinyModel { num_layers: 1, num_heads: 256 / head_dim, head_dim, context_length: 2 * LONG, ..TinyModel::new(arch) };
    let mut file = TinyModel { num_kv_heads: 128 / head_dim, ..tiny }.build();
    let norm = file.tensors.iter_mut().find(|tensor| tensor.name == "blk.0.attn_q_norm.weight").unwrap();
    for weight in norm.bytes.chunks_exact_mut(4) {
        let larger = 3.0 * f32::from_le_bytes((*weight).try_into().unwrap());
        weight.copy_from_slice(&larger.to_le_bytes());
    }
    let path = dir.join(format!("sharp-{head_dim}.gguf"));
    file.write(&path).unwrap();
    path
}

/// Opens an engine that takes sequences of `longest` tokens, each in one step.
fn open(backend: BackendKind, path: &Path, num_blocks: usize, longest: usize) -> Box<dyn Engine> {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let options = EngineOptions {
        context: longest.next_multiple_of(32),
        kv_tokens: num_blocks * 32,
        max_slots: 256,
        max_batch_tokens: longest,
        ..EngineOptions::default()
    };
    let mut engine = engine::open(weights, &options, Some(backend)).unwrap();
    let num_blocks = engine.kv_capacity().num_blocks;
    assert_eq!(engine.resize_cache(num_blocks).unwrap(), num_blocks, "memory for all blocks");
    engine
}

/// Two long prompts among short ones. The second long prompt begins like the first.
fn long_among_short(long: usize, shorts: usize) -> Vec<Vec<u32>> {
    let id = |i: usize, salt: usize| ((i * 48_271 + salt * 97) % 2_147_483_647 % VOCAB as usize) as u32;
    let first: Vec<u32> = (0..long).map(|i| id(i, 1)).collect();
    let second = (0..long + MORE).map(|i| id(i, if i < long * 7 / 8 { 1 } else { 2 })).collect();
    [first, second].into_iter().chain(prompts(VOCAB, shorts, SHORT as u32)).collect()
}

/// Checks that each row has the same bits alone, in a step with its whole prompt, and together with all others: in chunks, after a cached
/// prefix and after a preemption. The texts are also the same without the recorder, where a GPU runs graphs.
fn bits_do_not_depend_on_neighbours(open: Factory, path: &Path, name: &str, (long, shorts): (usize, usize)) {
    let seen = Seen::default();
    let prompts = long_among_short(long, shorts);
    let blocks_of = |tokens: usize| (tokens + TOKENS as usize).div_ceil(32) + 1;
    let (most, all) = (blocks_of(long + MORE), 2 * blocks_of(long + MORE) + shorts * blocks_of(SHORT));
    // The prompts of the two long sequences fit at the same time, but not their generated tokens.
    let tight = long.div_ceil(32) + (long + MORE).div_ceil(32) + 3;
    let alone = Load { num_blocks: most, max_batch_tokens: long + MORE, max_running: 1, prefix_cache: false, relatives: 0 };
    let (texts, _) = run(open(path, most), Some(&seen), &format!("{name} alone"), &alone, &prompts, TOKENS);
    let rows = seen.rows();
    assert_eq!(rows, prompts.len() * TOKENS as usize);
    // In ten steps, a long prompt is computed while short sequences decode, and then decodes together with them. In sixty, many end before.
    let (large, small) = ((long / 10).max(64), (long / 60).max(41));
    for (what, num_blocks, max_batch_tokens, prefix_cache) in [
        ("together", all, large, false),
        ("chunked", all, small, true),
        ("preempted", tight, large, false),
        ("as served", all, large, false),
    ] {
        let load = Load { num_blocks, max_batch_tokens, max_running: 256, prefix_cache, relatives: 0 };
        let count = if what == "preempted" { 2 } else { prompts.len() };
        let seen = (what != "as served").then_some(&seen);
        let (again, metrics) = run(open(path, num_blocks), seen, &format!("{name} {what}"), &load, &prompts[..count], TOKENS);
        assert!(texts[..count] == again, "{name}: {what}: other texts");
        assert!(!prefix_cache || metrics.prefix_cache_hits_total.get() > long as u64 / 2, "{name}: {what}: no long prefix was reused");
        assert!(what != "preempted" || metrics.num_preemptions_total.get() > 0, "{name}: nothing was preempted");
    }
    assert_eq!(seen.rows(), rows, "{name}: every load samples the same positions");
    assert!(seen.repeats() >= 2 * rows);
}

#[test]
fn a_long_sequence_has_the_same_bits_among_short_ones() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path, num_blocks| open(BackendKind::Cpu, path, num_blocks, 2200);
    bits_do_not_depend_on_neighbours(&open, &sharp_model(dir.path(), 64), "cpu long", (2000, 150));
}

#[test]
#[ignore = "needs a GPU"]
fn a_context_beyond_32000_tokens_has_the_same_bits_at_any_load_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    for head_dim in [64, 128] {
        let open = |path: &Path, num_blocks| open(BackendKind::Cuda, path, num_blocks, LONG + 200);
        bits_do_not_depend_on_neighbours(&open, &sharp_model(dir.path(), head_dim), &format!("cuda long {head_dim}"), (LONG, 24));
    }
}

/// Steps with several hundred rows of a prompt and up to two hundred decoding sequences.
#[test]
#[ignore = "needs a GPU"]
fn mixed_steps_of_many_sequences_have_the_same_bits_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    for head_dim in [64, 128] {
        let open = |path: &Path, num_blocks| open(BackendKind::Cuda, path, num_blocks, 8200);
        bits_do_not_depend_on_neighbours(&open, &sharp_model(dir.path(), head_dim), &format!("cuda mixed {head_dim}"), (8000, 200));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_gpu_agrees_with_the_cpu_beyond_32000_tokens() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    let prompt = long_among_short(LONG, 0).swap_remove(0);
    for head_dim in [64, 128] {
        let path = sharp_model(dir.path(), head_dim);
        let [(exact, text), (got, again)] = [BackendKind::Cpu, BackendKind::Cuda].map(|backend| {
            let mut engine = open(backend, &path, LONG / 32 + 8, LONG + 200);
            let mut logits = Vec::new();
            let text = greedy(&mut *engine, &prompt, 4, |_, row| logits.push(row.to_vec()));
            (logits, text)
        });
        for (step, (exact, got)) in exact.iter().zip(&got).enumerate() {
            // From the position where the texts diverge, the rows differ.
            if text[..step] == again[..step] {
                let divergence = divergence(exact, got);
                println!("heads of {head_dim}, position {}: KL divergence {divergence:.1e}", LONG + step);
                assert!(divergence < 1e-3, "heads of {head_dim}, step {step}: KL divergence {divergence:.1e}");
            }
        }
    }
}
