//! Tests attention over a cache of each type.

use super::super::dispatch::available;
use super::super::packing::{SHARED, quantise};
use super::*;
use crate::check::{Limits, Places};
use crate::{Input, KvCapacity};
use model::testing::Random;

const TOKENS: usize = 5;
const DIM: usize = 16;

fn random_rows(width: usize, random: &mut Random) -> Rows {
    let mut rows = Rows::new(width);
    rows.resize(TOKENS);
    (0..TOKENS).for_each(|i| rows.row_mut(i).iter_mut().for_each(|x| *x = random.centred()));
    rows
}

/// A prompt in block 1 of two.
fn batch() -> Batch {
    let tokens = TOKENS as u32;
    Batch {
        inputs: vec![Input::Token(0); TOKENS],
        positions: (0..tokens).collect(),
        cu_seqlens_q: vec![0, tokens],
        context_lens: vec![tokens],
        slot_mapping: (32..32 + tokens).collect(),
        block_tables: vec![1],
        max_blocks: 1,
        sequence_slots: vec![0],
        ..Batch::default()
    }
}

fn limits() -> Limits {
    Limits {
        kv: KvCapacity::blocks(2, 32),
        num_backed: 2,
        vocab_size: 1,
        embedding_width: 1,
        num_token_types: 0,
        max_slots: 1,
        max_batch_tokens: TOKENS,
        max_context: 32,
        bidirectional: false,
        loops: None,
        refuses_grids: None,
        refuses_rows: None,
        max_adapters: 0,
    }
}

#[test]
fn rows_see_the_keys_and_values_that_were_written_in_parallel() {
    let (batch, mut random, mut pool) = (batch(), Random(3), ThreadPool::new(3).unwrap());
    let places = limits().check(&batch).unwrap().places(0);
    let [q, k, v] = [4, 2, 2].map(|heads| random_rows(heads * DIM, &mut random));
    let sequences = [SequenceRows { first_row: 0, num_rows: TOKENS, first_position: 0, end: TOKENS }];
    let mask = Mask { window: None, kind: WindowKind::Sliding, bidirectional: false, run_sight: RunSight::Causal };
    for kernels in available() {
        let layout = CacheLayout::new(vec![CacheLayer::new(2, DIM, DIM)], [&[0][..]].into_iter());
        let mut cache = KvCache::new(layout, 2, 32).unwrap();
        cache.write(&mut pool, 0, places, (&k, &v), [DIM, DIM]);
        let attend = Attend {
            cache: &cache,
            layer: 0,
            num_heads: 4,
            scale: 0.25,
            soft_cap: None,
            mask,
            alibi: None,
            sinks: None,
            further: &[],
            sequences: &sequences,
            runs: &[],
            tables: &batch.block_tables,
        };
        let mut out = random_rows(4 * DIM, &mut random);
        kernels.attend(&q, &mut out, &mut pool, &attend);
        for (t, head) in (0..TOKENS).flat_map(|t| (0..4).map(move |head| (t, head))) {
            let score = |i: usize| {
                let pairs = q.row(t)[head * DIM..][..DIM].iter().zip(&k.row(i)[head / 2 * DIM..]);
                (0.25 * pairs.map(|(q, k)| q * k).sum::<f32>()).exp()
            };
            let sum: f32 = (0..=t).map(score).sum();
            for d in 0..DIM {
                let expected = (0..=t).map(|i| score(i) * v.row(i)[head / 2 * DIM + d]).sum::<f32>() / sum;
                let got = out.row(t)[head * DIM + d];
                assert!((got - expected).abs() < 1e-5, "{}: row {t}, head {head}: {got} for {expected}", kernels.name);
            }
        }
    }
}

/// A cache of one layer, with what was written to it.
struct Stored {
    cache: KvCache,
    keys: Rows,      // [MANY, kv_heads · key_dim]
    values: Rows,    // [MANY, kv_heads · value_dim]
    rotations: Rows, // [MANY, 2 · pairs]
    dims: [usize; 2],
}

/// Enough tokens for several blocks, tiles and tasks.
const MANY: usize = 100;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;

fn rows_of(count: usize, width: usize, random: &mut Random) -> Rows {
    let mut rows = Rows::new(width);
    rows.resize(count);
    (0..count).for_each(|i| rows.row_mut(i).iter_mut().for_each(|x| *x = random.centred()));
    rows
}

/// The block of each 32 or 64 tokens.
const TABLE: [u32; 4] = [3, 0, 4, 1];

impl Stored {
    fn new(layer: CacheLayer, dims: [usize; 2], block_size: usize, random: &mut Random) -> Self {
        let mut cache = KvCache::new(CacheLayout::new(vec![layer], [&[0][..]].into_iter()), 5, block_size).unwrap();
        let [keys, values] = dims.map(|dim| rows_of(MANY, KV_HEADS * dim, random));
        let rotations = rows_of(MANY, 2 * layer.bias.pairs, random);
        let places: Vec<u32> = (0..MANY).map(|t| TABLE[t / block_size] * block_size as u32 + (t % block_size) as u32).collect();
        let places = Places::distinct(&places, 5 * block_size).unwrap();
        let mut pool = ThreadPool::new(2).unwrap();
        cache.write(&mut pool, 0, places, (&keys, &values), dims);
        if layer.bias.pairs > 0 {
            cache.write_rotations(&mut pool, 0, places, &rotations);
        }
        Self { cache, keys, values, rotations, dims }
    }

    /// Every other rotation, so that some are left out.
    fn further(&self) -> Vec<u32> {
        (0..2 * self.cache.layer(0).bias.pairs as u32).step_by(2).collect()
    }

    fn query_dim(&self) -> usize {
        self.cache.layer(0).key_dim + self.further().len() + usize::from(self.cache.layer(0).bias.has_rest)
    }

    /// An element as the cache gives it back.
    fn kept(&self, row: &[f32], head: usize, (dim, at): (usize, usize)) -> f64 {
        let head = &row[head * dim..][..dim];
        match self.cache.layer(0).kept {
            CacheType::F32 => f64::from(head[at]),
            CacheType::F16 => half::f16::from_f32(head[at]).to_f64(),
            CacheType::Q8 => {
                let first = at / SHARED * SHARED;
                let mut codes = [0; SHARED];
                let scale = quantise(&head[first..dim.min(first + SHARED)], &mut codes);
                f64::from(codes[at - first]) * half::f16::from_bits(scale).to_f64()
            }
        }
    }

    /// The result of one query, in double.
    fn expected(&self, q: &[f32], kv_head: usize, seen: std::ops::Range<usize>) -> Vec<f64> {
        let (layer, [dim, value_dim]) = (self.cache.layer(0), self.dims);
        let score = |t: usize| {
            let key = (0..dim).map(|d| f64::from(q[d]) * self.kept(self.keys.row(t), kv_head, (dim, d))).sum::<f64>();
            let further = &q[layer.key_dim..];
            let bias = self.rotations.row(t).iter().step_by(2).zip(further).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let rest = if layer.bias.has_rest { f64::from(further[further.len() - 1]) } else { 0.0 };
            (0.25 * (key + bias + rest)).exp()
        };
        let weights: Vec<f64> = seen.clone().map(score).collect();
        let sum: f64 = weights.iter().sum();
        let of =
            |d: usize| seen.clone().zip(&weights).map(|(t, p)| p * self.kept(self.values.row(t), kv_head, (value_dim, d))).sum::<f64>();
        (0..value_dim).map(|d| of(d) / sum).collect()
    }

    /// Attends with `rows` rows at a time.
    fn attend(&self, kernels: &Kernels, q: &Rows, window: Option<usize>, rows: usize) -> Rows {
        let sequence = |first: usize| {
            let num_rows = rows.min(MANY - first);
            SequenceRows { first_row: first, num_rows, first_position: first, end: first + num_rows }
        };
        let sequences: Vec<_> = (0..MANY).step_by(rows).map(sequence).collect();
        let tables = TABLE.repeat(sequences.len());
        let a = Attend {
            cache: &self.cache,
            layer: 0,
            num_heads: HEADS,
            scale: 0.25,
            soft_cap: None,
            mask: Mask { window, kind: WindowKind::Sliding, bidirectional: false, run_sight: RunSight::Causal },
            alibi: None,
            sinks: None,
            further: &self.further(),
            sequences: &sequences,
            runs: &[],
            tables: &tables,
        };
        let mut out = Rows::new(HEADS * self.cache.layer(0).value_dim);
        out.resize(MANY);
        kernels.attend(q, &mut out, &mut ThreadPool::new(2).unwrap(), &a);
        out
    }
}

fn bits(rows: &Rows) -> Vec<u32> {
    (0..rows.num_rows()).flat_map(|i| rows.row(i).iter().map(|x| x.to_bits())).collect()
}

/// Compares the kernels with sums in double over what the cache holds, and rows alone with rows together.
fn check(kept: CacheType, dims: [usize; 2], block_size: usize, bias: StoredBias) {
    let mut random = Random(7);
    let layer = CacheLayer::new(KV_HEADS, dims[0], dims[1]).keep(kept, bias);
    let stored = Stored::new(layer, dims, block_size, &mut random);
    let layer = *stored.cache.layer(0);
    let mut q = rows_of(MANY, HEADS * stored.query_dim(), &mut random);
    for t in 0..MANY {
        // the padding of a query
        q.row_mut(t).chunks_exact_mut(stored.query_dim()).for_each(|head| head[dims[0]..layer.key_dim].fill(0.0));
    }
    for window in [None, Some(20)] {
        let mut first: Option<Vec<u32>> = None;
        for kernels in available() {
            let name = format!("{kept} {dims:?} {window:?} ({})", kernels.name);
            let out = stored.attend(kernels, &q, window, MANY);
            for (t, h) in (0..MANY).step_by(7).flat_map(|t| (0..HEADS).map(move |h| (t, h))) {
                let q = &q.row(t)[h * stored.query_dim()..][..stored.query_dim()];
                let from = window.map_or(0, |window| (t + 1).saturating_sub(window));
                let expected = stored.expected(q, h / (HEADS / KV_HEADS), from..t + 1);
                for (got, expected) in out.row(t)[h * layer.value_dim..].iter().zip(expected) {
                    assert!((f64::from(*got) - expected).abs() < 1e-5, "{name}: row {t}, head {h}: {got} for {expected}");
                }
            }
            for rows in [1, 13] {
                assert_eq!(bits(&stored.attend(kernels, &q, window, rows)), bits(&out), "{name}: {rows} rows at a time");
            }
            if kernels.name != "portable" {
                assert_eq!(first.get_or_insert_with(|| bits(&out)), &bits(&out), "{name}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes; `a_packed_cache_is_read_within_its_bounds` has the same accesses")]
fn every_type_of_cache_is_read_as_it_was_written() {
    for kept in CacheType::ALL {
        for (dims, block_size) in [([64, 64], 32), ([40, 24], 64), ([128, 80], 32)] {
            check(kept, dims, block_size, StoredBias::default());
        }
    }
    for (dim, pairs, has_rest) in [(64, 32, false), (48, 8, true), (64, 0, true)] {
        check(CacheType::Q8, [dim, 64], 32, StoredBias { rope: 0, pairs, has_rest });
    }
}

#[test]
fn a_packed_cache_is_read_within_its_bounds() {
    let mut random = Random(8);
    for (kept, bias) in [(CacheType::F16, StoredBias::default()), (CacheType::Q8, StoredBias { rope: 0, pairs: 4, has_rest: true })] {
        let layer = CacheLayer::new(KV_HEADS, 24, 16).keep(kept, bias);
        let stored = Stored::new(layer, [24, 16], 32, &mut random);
        let q = rows_of(MANY, HEADS * stored.query_dim(), &mut random);
        let portable = available().pop().unwrap();
        let out = stored.attend(portable, &q, None, 50);
        assert!((0..MANY).all(|i| out.row(i).iter().all(|x| x.is_finite())));
    }
}

#[test]
fn layers_of_a_group_share_their_rotations() {
    let bias = |rope| StoredBias { rope, pairs: 8, has_rest: false };
    let layer = |rope| CacheLayer::new(1, 32, 32).keep(CacheType::Q8, bias(rope));
    let layout = CacheLayout::new(vec![layer(0), layer(1), layer(0), layer(0)], [&[0, 1, 2][..], &[3]].into_iter());
    assert_eq!(layout.layers.iter().map(|layer| layer.writes_rotations).collect::<Vec<_>>(), [true, true, false, true]);
    assert_eq!(layout.layers[0].rotations(32), layout.layers[2].rotations(32));
    // three layers of 2 · (32 + 2) bytes per token, and two rotations of 16 floats
    assert_eq!(layout.bytes(1, 32), Some(32 * (3 * 68 + 2 * 64)));
}

/// Run with `cargo test --release -p penstock-engine -- --ignored --nocapture attention_speed`. Prints one thread's time per layer, token
/// of the context and K/V head, in nanoseconds: of a decode step, and of a prompt's row. The caches of all layers together exceed L3.
#[test]
#[ignore = "a measurement"]
fn attention_speed() {
    const LAYERS: usize = 12;
    let biased = |pairs| StoredBias { rope: 0, pairs, has_rest: false };
    let plain = CacheType::ALL.map(|kept| (kept, 0));
    let mut pool = ThreadPool::new(1).unwrap();
    for (dim, group, context) in [(64, 1, 16384), (64, 3, 8192), (64, 7, 8192), (128, 4, 8192), (128, 8, 8192), (64, 7, 512), (64, 3, 512)]
    {
        for (kept, pairs) in plain.into_iter().chain([(CacheType::Q8, 4), (CacheType::Q8, dim / 2)]) {
            let layers = vec![CacheLayer::new(1, dim, dim).keep(kept, biased(pairs)); LAYERS];
            let all: Vec<usize> = (0..LAYERS).collect();
            let mut cache = KvCache::new(CacheLayout::new(layers, std::iter::once(&all[..])), context / 32, 32).unwrap();
            let mut random = Random(1);
            let [k, v] = [0; 2].map(|_| rows_of(context, dim, &mut random));
            let places: Vec<u32> = (0..context as u32).collect();
            let places = Places::distinct(&places, context).unwrap();
            (0..LAYERS).for_each(|layer| cache.write(&mut pool, layer, places, (&k, &v), [dim, dim]));
            if pairs > 0 {
                cache.write_rotations(&mut pool, 0, places, &rows_of(context, 2 * pairs, &mut random));
            }
            let tables: Vec<u32> = (0..context as u32 / 32).collect();
            let further: Vec<u32> = (0..2 * pairs as u32).collect();
            let mut time = |rows: usize| {
                let sequences = [SequenceRows { first_row: 0, num_rows: rows, first_position: context - rows, end: context }];
                let q = rows_of(rows, group * (dim + further.len()), &mut random);
                let mut out = rows_of(rows, group * dim, &mut random);
                let mut best = f64::MAX;
                for _ in 0..7 {
                    let start = std::time::Instant::now();
                    for layer in 0..LAYERS {
                        let a = Attend {
                            cache: &cache,
                            layer,
                            num_heads: group,
                            scale: 0.1,
                            soft_cap: None,
                            mask: Mask { window: None, kind: WindowKind::Sliding, bidirectional: false, run_sight: RunSight::Causal },
                            alibi: None,
                            sinks: None,
                            further: &further,
                            sequences: &sequences,
                            runs: &[],
                            tables: &tables,
                        };
                        available()[0].attend(&q, &mut out, &mut pool, &a);
                    }
                    best = best.min(start.elapsed().as_secs_f64());
                }
                best * 1e9 / (LAYERS * context * rows) as f64
            };
            let (decode, prompt) = (time(1), time(64));
            let bias = if pairs > 0 { format!("less the bias of {pairs} pairs") } else { String::new() };
            println!("head {dim:3}, {group} queries, {context:5} tokens: {kept} {decode:6.1} {prompt:6.1} {bias}");
        }
    }
}
