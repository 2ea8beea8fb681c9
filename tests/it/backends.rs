//! Checks that whole engines are exact and give the same bits at any load.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;

use crate::recorder::{Recorder, Seen};
use engine::cpu::{CpuEngine, CpuOptions, Cut, simd};
use engine::{self, BackendKind, Batch, CacheType, Engine, EngineError, EngineOptions, Input, SlotInit, StepOutput};
use gguf::GgufFile;
use logits::SamplingParams;
use metrics::ModelMetrics;
use model::testing::TinyModel;
use model::{ARCHS, QUANTS, Weights};
use scheduler::{Event, EventStream, Handle, Items, NewSequence, SchedulerOptions, SequenceGroup};

/// Opens an engine with the given number of KV blocks per cache group.
fn open(path: &Path, options: &CpuOptions, kernels: &'static simd::Kernels) -> CpuEngine {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let num_blocks = options.num_blocks * weights.spec.cache_groups().len();
    CpuEngine::new(weights, &CpuOptions { num_blocks, least_blocks: num_blocks, ..options.clone() }, kernels).unwrap()
}

fn options(num_blocks: usize) -> CpuOptions {
    CpuOptions {
        threads: 2,
        context: 512,
        num_blocks,
        least_blocks: num_blocks,
        block_size: 32,
        cache_type: CacheType::F32,
        max_slots: 32,
        max_batch_tokens: 512,
        state_slots: 4,
        draft_states: 0,
        draft_head: false,
        max_adapters: 4,
        cut: Cut::default(),
    }
}

/// Opens an engine with the given number of KV blocks.
pub type Factory<'a> = &'a (dyn Fn(&Path, usize) -> Box<dyn Engine> + Sync);

pub fn on_cpu(path: &Path, num_blocks: usize) -> Box<dyn Engine> {
    Box::new(open(path, &options(num_blocks), simd::dispatch::available()[0]))
}

/// With the draft head of the model's file.
pub fn on_cpu_with_head(path: &Path, num_blocks: usize) -> Box<dyn Engine> {
    Box::new(open(path, &CpuOptions { draft_head: true, ..options(num_blocks) }, simd::dispatch::available()[0]))
}

/// With states to go back behind wrong drafts, and the draft head of the model's file.
pub fn on_cpu_with_states(path: &Path, num_blocks: usize) -> Box<dyn Engine> {
    let options = CpuOptions { draft_states: 8, draft_head: true, ..options(num_blocks) };
    Box::new(open(path, &options, simd::dispatch::available()[0]))
}

pub fn on_gpu(path: &Path, num_blocks: usize) -> Box<dyn Engine> {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let kv_tokens = num_blocks * 32;
    let context = kv_tokens.min(1024);
    let options = EngineOptions { context, kv_tokens, max_slots: 32, max_batch_tokens: 1024, ..EngineOptions::default() };
    let mut engine = engine::open(weights, &options, Some(BackendKind::Cuda)).expect("an engine on the GPU");
    // Tests without a scheduler use all blocks.
    let num_blocks = engine.kv_capacity().num_blocks;
    assert_eq!(engine.resize_cache(num_blocks).unwrap(), num_blocks, "memory for all blocks");
    engine
}

/// Tests share the GPU, except those that measure its memory.
static GPU: RwLock<()> = RwLock::new(());

/// Takes the right to share the GPU with other tests. A test that opens an engine without a GPU fails.
pub fn gpu() -> RwLockReadGuard<'static, ()> {
    GPU.read().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Takes the right to use the GPU alone.
pub fn gpu_alone() -> RwLockWriteGuard<'static, ()> {
    GPU.write().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What to generate: `tokens` for each of `count` prompts of up to `longest` ids below `vocab`. `in_graphs`: also run without the recorder.
pub struct Work {
    pub vocab: u32,
    pub count: usize,
    pub longest: u32,
    pub tokens: u32,
    pub in_graphs: bool,
}

pub struct Load {
    pub num_blocks: usize,
    pub max_batch_tokens: usize,
    pub max_running: usize,
    pub prefix_cache: bool,
    /// The number of further sequences for each prompt.
    pub relatives: usize,
}

/// Runs all prompts at once through a scheduler. Returns their texts and the metrics of the engine thread. Without `seen`, no logits are
/// requested, so a GPU runs graphs.
pub fn run<P: Clone + Into<Items>>(
    mut engine: Box<dyn Engine>,
    seen: Option<&Seen>,
    name: &str,
    load: &Load,
    prompts: &[P],
    tokens: u32,
) -> (Vec<Vec<u32>>, Arc<ModelMetrics>) {
    if let Some(seen) = seen {
        engine = Box::new(Recorder::new(engine, seen));
    }
    // The cache grows from its least size.
    engine.resize_cache(1).unwrap();
    let scheduling = SchedulerOptions {
        max_batch_tokens: load.max_batch_tokens,
        max_running: load.max_running,
        max_waiting: 512,
        max_waiting_tokens: 0,
        prefix_cache: load.prefix_cache,
        drafts: false,
    };
    let metrics = ModelMetrics::for_model(name);
    let handle = Handle::spawn(engine, scheduling, metrics.clone());
    let enqueue = |prompt: &P| {
        let sequence_group = (load.relatives > 0).then(SequenceGroup::unique);
        let sequence = NewSequence { sequence_group, ..NewSequence::new(prompt.clone(), SamplingParams::greedy(), tokens) };
        (0..=load.relatives).map(|_| handle.enqueue(sequence.clone()).unwrap()).collect()
    };
    let sequence_groups: Vec<Vec<EventStream>> = prompts.iter().map(enqueue).collect();
    let alike = |sequence_group: Vec<EventStream>| {
        let mut texts: Vec<_> = sequence_group.into_iter().map(drain).collect();
        texts.dedup();
        assert_eq!(texts.len(), 1, "sequences with the same prompt differ");
        texts.remove(0)
    };
    let texts = sequence_groups.into_iter().map(alike).collect();
    // The process must not end while an engine frees GPU memory.
    handle.stop();
    assert!(handle.wait_ended(std::time::Duration::from_secs(60)), "the engine does not end");
    (texts, metrics)
}

/// Reads a stream to its end. Returns the ids of its tokens.
pub fn drain(mut stream: EventStream) -> Vec<u32> {
    let mut text = Vec::new();
    while let Some(event) = stream.blocking_next() {
        match event {
            Event::Token { id, .. } => text.push(id),
            Event::Failed(why) => panic!("{why}"),
            _ => {}
        }
    }
    text
}

/// Prompts of many lengths, half of which share a beginning.
pub fn prompts(vocab: u32, count: usize, longest: u32) -> Vec<Vec<u32>> {
    let id = |i: u32, salt: u32| i.wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503)) / 7 % vocab;
    (0..count as u32)
        .map(|n| {
            let len = 1 + n.wrapping_mul(97) % longest;
            let shared = if n % 2 == 0 { len * 3 / 4 } else { 0 };
            let mut prompt: Vec<u32> = (0..len).map(|i| if i < shared { id(i, 1) } else { id(i, 1000 + n) }).collect();
            prompt.push(n % vocab); // makes the prompt unique
            prompt
        })
        .collect()
}

fn bits_do_not_depend_on_load(open: Factory, path: &Path, name: &str, work: &Work) {
    let prompts = prompts(work.vocab, work.count, work.longest);
    prompts_have_the_same_bits(open, (path, name), &prompts, work);
}

/// Checks that the logits of every row have the same bits alone and together with all sequences: in small chunks, with the prefix cache,
/// with too few blocks, and with shared prompts.
pub fn prompts_have_the_same_bits<P: Clone + Into<Items>>(open: Factory, (path, name): (&Path, &str), prompts: &[P], work: &Work) {
    let Work { count, longest, tokens, in_graphs, .. } = *work;
    let seen = Seen::default();
    let alone = Load { num_blocks: 32, max_batch_tokens: 512, max_running: 1, prefix_cache: false, relatives: 0 };
    let (texts, _) = run(open(path, alone.num_blocks), Some(&seen), &format!("{name} alone"), &alone, prompts, tokens);
    let rows = seen.rows();
    assert_eq!(rows, count * tokens as usize);
    let most = (longest as usize + 1 + tokens as usize).div_ceil(32);
    for (what, load) in [
        ("together", Load { num_blocks: 32 * most, max_batch_tokens: 512, max_running: 32, prefix_cache: false, relatives: 0 }),
        ("chunked", Load { num_blocks: 32 * most, max_batch_tokens: 41, max_running: 32, prefix_cache: true, relatives: 0 }),
        ("preempted", Load { num_blocks: 2 * most + 1, max_batch_tokens: 64, max_running: 32, prefix_cache: true, relatives: 0 }),
        ("in families", Load { num_blocks: 32 * most, max_batch_tokens: 100, max_running: 32, prefix_cache: false, relatives: 2 }),
    ] {
        let engine = open(path, load.num_blocks);
        // If windows have additional blocks, memory is not short.
        let is_short = what == "preempted" && engine.kv_capacity().num_blocks == load.num_blocks;
        let (again, metrics) = run(engine, Some(&seen), &format!("{name} {what}"), &load, prompts, tokens);
        assert_eq!(texts, again, "{name}: {what}");
        assert!(!load.prefix_cache || metrics.prefix_cache_hits_total.get() > 0, "{name}: {what}: no prefix was reused");
        assert!(!is_short || metrics.num_preemptions_total.get() > 0, "{name}: nothing was preempted");
    }
    assert_eq!(seen.rows(), rows, "{name}: every load samples the same positions");
    assert!(seen.repeats() >= 3 * rows);
    // One prompt alone, in one step or several, and all prompts at the same time.
    let served: &[(usize, usize)] = if in_graphs { &[(512, 1), (41, 1), (90, 32)] } else { &[] };
    for &(max_batch_tokens, max_running) in served {
        let load = Load { num_blocks: 32 * most, max_batch_tokens, max_running, prefix_cache: true, relatives: 0 };
        let (again, _) = run(open(path, load.num_blocks), None, &format!("{name} as served"), &load, prompts, tokens);
        assert_eq!(texts, again, "{name}: as served, in steps of {max_batch_tokens}");
    }
}

/// Tiny models of all architectures. The first architecture, dense and with experts, comes in every type. Each of the others comes in one
/// type.
fn tiny_models(quants: &[&str]) -> Vec<TinyModel> {
    let quants: Vec<_> = QUANTS.iter().filter(|quant| quants.contains(&quant.name)).collect();
    let of = |(i, tiny): (usize, TinyModel)| {
        let count = if tiny.arch.name == ARCHS[0].name { quants.len() } else { 1 };
        (0..count).map(|k| TinyModel { quant: quants[(i + k) % quants.len()], ..tiny.clone() }).collect::<Vec<_>>()
    };
    TinyModel::all().enumerate().flat_map(of).collect()
}

fn tiny_bits_do_not_depend_on_load(open: Factory, dir: &Path, backend: &str, quants: &[&str], work: &Work) {
    let models = Mutex::new(tiny_models(quants).into_iter());
    let next = || models.lock().unwrap().next(); // in the loop's head, the lock would be held while a model is tested
    let test_all = || {
        while let Some(tiny) = next() {
            let name = format!("{backend}-{}", tiny.name());
            let path = dir.join(format!("{name}.gguf"));
            tiny.build().write(&path).unwrap();
            bits_do_not_depend_on_load(open, &path, &name, work);
        }
    };
    // A CPU engine has two threads. A GPU engine keeps two busy: its own and the test's.
    let at_once = thread::available_parallelism().map_or(1, |cores| cores.get() / 2).max(1);
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(test_all))));
}

#[test]
fn logits_have_the_same_bits_at_any_load() {
    let dir = tempfile::tempdir().unwrap();
    let work = Work { vocab: 320, count: 16, longest: 150, tokens: 72, in_graphs: false };
    tiny_bits_do_not_depend_on_load(&on_cpu, dir.path(), "cpu", &["Q4_1", "Q5_0", "Q6_K", "F16", "IQ2_XS"], &work);
}

#[test]
fn logits_have_the_same_bits_at_any_load_with_caches_of_fewer_bits() {
    let dir = tempfile::tempdir().unwrap();
    let work = Work { vocab: 320, count: 16, longest: 150, tokens: 72, in_graphs: false };
    // a bias of keys, windows, experts, and keys that are not rotated
    let models: Vec<_> = tiny_models(&["F16"]).into_iter().filter(|tiny| ["qwen2", "gemma3", "gpt2"].contains(&tiny.arch.name)).collect();
    assert_eq!(models.len(), 3);
    for (tiny, cache_type) in models.iter().flat_map(|tiny| [CacheType::F16, CacheType::Q8].map(|cache_type| (tiny, cache_type))) {
        let name = format!("cpu-{cache_type}-{}", tiny.name());
        let path = dir.path().join(format!("{name}.gguf"));
        tiny.build().write(&path).unwrap();
        let kernels = simd::dispatch::available()[0];
        let open = |path: &Path, num_blocks: usize| -> Box<dyn Engine> {
            Box::new(open(path, &CpuOptions { cache_type, ..options(num_blocks) }, kernels))
        };
        bits_do_not_depend_on_load(&open, &path, &name, &work);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn logits_have_the_same_bits_at_any_load_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    let quants: Vec<&str> = QUANTS.iter().map(|quant| quant.name).collect();
    let work = Work { vocab: 320, count: 32, longest: 150, tokens: 72, in_graphs: true };
    tiny_bits_do_not_depend_on_load(&on_gpu, dir.path(), "cuda", &quants, &work);
}

/// Checks that the logits of every row have the same bits while the cache grows, and while it repeatedly gives back idle memory. Blocks are
/// large, so that each has its own page on a GPU.
fn bits_stay_while_the_cache_grows_and_shrinks(open: Factory, dir: &Path, backend: &str) {
    let path = dir.join("growing.gguf");
    TinyModel { num_heads: 8, num_kv_heads: 8, head_dim: 128, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
    let (seen, prompts) = (Seen::default(), prompts(320, 24, 600));
    let alone = Load { num_blocks: 32, max_batch_tokens: 512, max_running: 1, prefix_cache: false, relatives: 0 };
    let (texts, _) = run(open(&path, 32), Some(&seen), &format!("{backend} fixed"), &alone, &prompts, 24);
    // Without the recorder, a GPU runs graphs, here at contexts of up to 600 tokens.
    let (again, _) = run(open(&path, 32), None, &format!("{backend} as served"), &alone, &prompts, 24);
    assert_eq!(texts, again);
    let mut recorder = Recorder::new(open(&path, 400), &seen);
    let least = recorder.resize_cache(1).unwrap();
    let metrics = ModelMetrics::for_model(&format!("{backend} growing"));
    let options = SchedulerOptions {
        max_batch_tokens: 100,
        max_running: 6,
        max_waiting: 512,
        max_waiting_tokens: 0,
        prefix_cache: true,
        drafts: false,
    };
    let handle = Handle::spawn(Box::new(recorder), options, metrics.clone());
    let sequence = |prompt: &Vec<u32>| NewSequence::new(prompt.clone(), SamplingParams::greedy(), 24);
    // A fast engine may finish a round's sequences before it is asked for memory, so rounds continue until that has happened often enough.
    let is_enough = || metrics.cache_growths_total.get() > 2 && metrics.cache_give_backs_total.get() > 2;
    for round in 0..20 {
        if round >= 5 && is_enough() {
            break;
        }
        let streams: Vec<EventStream> = prompts.iter().map(|prompt| handle.enqueue(sequence(prompt)).unwrap()).collect();
        // A cache that was asked for memory does not grow for two seconds, so it is asked only after it has grown.
        let (asks, grown) = (handle.clone(), metrics.clone());
        let before = grown.cache_growths_total.get();
        let asking = thread::spawn(move || {
            while asks.num_active() > 0 && grown.cache_growths_total.get() == before {
                thread::sleep(std::time::Duration::from_millis(1));
            }
            asks.give_back(u64::MAX, std::time::Duration::from_secs(5));
        });
        let again: Vec<Vec<u32>> = streams.into_iter().map(drain).collect();
        asking.join().unwrap();
        assert_eq!(again, texts);
        thread::sleep(std::time::Duration::from_millis(2100));
    }
    handle.give_back(u64::MAX, std::time::Duration::from_secs(5));
    let (bytes, growths) = (handle.cache(), metrics.cache_growths_total.get());
    println!("{growths} growths, {} give-backs, at the end {bytes:?}", metrics.cache_give_backs_total.get());
    assert!(is_enough(), "{growths} growths");
    assert_eq!((bytes.used, bytes.backed), (0, bytes.most / 400 * least as u64), "all of it was given back");
    assert!(seen.repeats() > 0);
}

#[test]
fn logits_have_the_same_bits_while_the_cache_grows_and_shrinks() {
    bits_stay_while_the_cache_grows_and_shrinks(&on_cpu, tempfile::tempdir().unwrap().path(), "cpu");
}

#[test]
#[ignore = "needs a GPU"]
fn logits_have_the_same_bits_while_the_cache_grows_and_shrinks_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    bits_stay_while_the_cache_grows_and_shrinks(&on_gpu, dir.path(), "cuda");
}

/// The Kullback-Leibler divergence of the next token's distribution [nats].
pub fn divergence(exact: &[f32], got: &[f32]) -> f64 {
    let log_probabilities = |logits: &[f32]| -> Vec<f64> {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = logits.iter().map(|x| f64::from(x - max).exp()).sum::<f64>().ln();
        logits.iter().map(|x| f64::from(x - max) - total).collect()
    };
    log_probabilities(exact).iter().zip(log_probabilities(got)).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// The two backends round differently and otherwise compute the same.
#[test]
#[ignore = "needs a GPU"]
fn the_gpu_agrees_with_the_cpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    let prompt: Vec<u32> = (0..77).map(|i| i * 31 % 320).collect();
    let quants: Vec<&str> = QUANTS.iter().map(|quant| quant.name).collect();
    for tiny in tiny_models(&quants) {
        let path = dir.path().join(format!("{}.gguf", tiny.name()));
        tiny.build().write(&path).unwrap();
        let [exact, got] = [on_cpu(&path, 8), on_gpu(&path, 8)].map(|mut engine| {
            let mut steps = Vec::new();
            // A prompt, then a single row: every op has a variant for each.
            greedy(&mut *engine, &prompt, 1, |_, logits| steps.push(logits.to_vec()));
            greedy(&mut *engine, &prompt[..1], 1, |_, logits| steps.push(logits.to_vec()));
            steps
        });
        for (exact, got) in exact.iter().zip(&got) {
            let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>();
            let error = square(&mut exact.iter().zip(got).map(|(a, b)| a - b)) / square(&mut exact.iter().copied());
            assert!(error < 1e-4, "{}: normalised error {error:.1e}", tiny.name());
            let divergence = divergence(exact, got);
            assert!(divergence < 1e-3, "{}: divergence {divergence:.1e}", tiny.name());
        }
    }
}

#[test]
#[ignore = "needs PENSTOCK_TEST_MODELS"]
fn real_models_have_the_same_bits_at_any_load() {
    let path = fixtures::real_model(fixtures::REAL_MODELS[0]);
    bits_do_not_depend_on_load(&on_cpu, &path, "smollm2", &Work { vocab: 49152, count: 16, longest: 150, tokens: 40, in_graphs: false });
}

#[test]
#[ignore = "needs a GPU and PENSTOCK_TEST_MODELS"]
fn real_models_have_the_same_bits_at_any_load_on_the_gpu() {
    let _gpu = gpu();
    for name in fixtures::REAL_MODELS {
        let work = Work { vocab: 49152, count: 64, longest: 150, tokens: 40, in_graphs: true };
        bits_do_not_depend_on_load(&on_gpu, &fixtures::real_model(name), &format!("cuda {name}"), &work);
    }
}

/// The real models with their reference logits.
fn real_models() -> [(PathBuf, serde_json::Value); 3] {
    let reference = |name| serde_json::from_str(&fixtures::golden_text(&format!("reference/{name}.json"))).unwrap();
    fixtures::REAL_MODELS.map(|name| (fixtures::real_model(name), reference(name)))
}

/// Generates a greedy continuation. `look` gets the logits of each step.
pub fn greedy(engine: &mut dyn Engine, prompt: &[u32], steps: u32, mut look: impl FnMut(u32, &[f32])) -> Vec<u32> {
    let mut out = StepOutput::default();
    let (mut text, mut context) = (Vec::new(), 0);
    for step in 0..steps {
        let fed: Vec<u32> = if step == 0 { prompt.to_vec() } else { vec![*text.last().unwrap()] };
        let end = context + fed.len() as u32;
        let init = SlotInit { slot: 0, params: Arc::new(SamplingParams::greedy()), prompt: prompt.into(), generated: Vec::new() };
        let blocks = end.div_ceil(32);
        let batch = Batch {
            cu_seqlens_q: vec![0, fed.len() as u32],
            sampled_rows: vec![fed.len() as u32 - 1],
            inputs: fed.into_iter().map(Input::Token).collect(),
            positions: (context..end).collect(),
            context_lens: vec![end],
            slot_mapping: (context..end).collect(),
            block_tables: (0..blocks).collect(),
            max_blocks: blocks as usize,
            sequence_slots: vec![0],
            init: if step == 0 { vec![init] } else { Vec::new() },
            want_logits: true,
            ..Batch::default()
        };
        let id = engine.submit(&batch.in_all_groups(&engine.kv_capacity())).unwrap();
        engine.collect(id, &mut out).unwrap();
        look(step, &out.logits[0]);
        let best = (0..out.logits[0].len()).rev().max_by(|&a, &b| out.logits[0][a].total_cmp(&out.logits[0][b])).unwrap();
        text.push(best as u32);
        context = end;
    }
    text
}

#[test]
#[ignore = "needs PENSTOCK_TEST_MODELS"]
fn real_models_agree_with_the_reference() {
    for (path, reference) in real_models() {
        let options = CpuOptions { max_batch_tokens: 1024, ..options(40) };
        let mut engine = open(&path, &options, simd::dispatch::available()[0]);
        for case in reference.as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let steps: Vec<(u32, f64, f64)> = serde_json::from_value(case["greedy"].clone()).unwrap();
            let (std, what) = (case["std"].as_f64().unwrap(), format!("{} {}", path.display(), case["name"]));
            let text = greedy(&mut engine, &ids, steps.len() as u32, |step, logits| {
                for (id, exact) in serde_json::from_value::<Vec<(usize, f64)>>(case["top"].clone()).unwrap() {
                    let off = (f64::from(logits[id]) - exact).abs() / std;
                    assert!(step > 0 || off < 2e-3, "{what}: logit {id} is off by {off} standard deviations");
                }
            });
            for (i, ((id, _, margin), got)) in steps.iter().zip(&text).enumerate() {
                if *margin < 0.01 {
                    break;
                }
                assert_eq!(id, got, "{what}: step {i}, margin {margin}");
            }
        }
    }
}

/// On a GPU, the first distribution diverges little from the CPU's, which is exact, and the greedy text is the same.
#[test]
#[ignore = "needs a GPU and PENSTOCK_TEST_MODELS"]
fn real_models_agree_with_the_reference_on_the_gpu() {
    let _gpu = gpu();
    for (path, reference) in real_models() {
        let options = CpuOptions { max_batch_tokens: 1024, ..options(40) };
        let mut cpu = open(&path, &options, simd::dispatch::available()[0]);
        let mut device = on_gpu(&path, 40);
        for case in reference.as_array().unwrap() {
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            let steps: Vec<(u32, f64, f64)> = serde_json::from_value(case["greedy"].clone()).unwrap();
            let what = format!("{} {}", path.display(), case["name"]);
            let mut exact = Vec::new();
            greedy(&mut cpu, &ids, 1, |_, logits| exact = logits.to_vec());
            let text = greedy(&mut *device, &ids, steps.len() as u32, |step, logits| {
                if step == 0 {
                    let divergence = divergence(&exact, logits);
                    println!("{what}: KL divergence {divergence:.2e}");
                    assert!(divergence < 1e-3, "{what}: KL divergence {divergence}");
                }
            });
            for (i, ((id, _, margin), got)) in steps.iter().zip(&text).enumerate() {
                if *margin < 0.05 {
                    break;
                }
                assert_eq!(id, got, "{what}: step {i}, margin {margin}");
            }
        }
    }
}

/// An allocation that aborts would end the process together with every other model.
#[test]
fn a_cache_beyond_all_memory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    TinyModel::new(&ARCHS[0]).build().write(&path).unwrap();
    // More than the address space, more than a product can hold, more than a vector may have.
    for num_blocks in [1 << 40, 1 << 62, usize::MAX / 100_000] {
        let weights = Weights::load(Arc::new(GgufFile::open(&path).unwrap())).unwrap();
        let error = CpuEngine::new(weights, &options(num_blocks), simd::dispatch::available()[0]).err().expect("it opened");
        assert!(matches!(&error, EngineError::OutOfMemory(what) if what.contains(&format!("{num_blocks} blocks"))), "{error}");
    }
}

/// Instruction sets with fused multiply-add give the same bits, and the portable one is close. For quantised weights, which AVX-512
/// multiplies as integers, all of them are only close to each other.
#[test]
fn instruction_sets_agree() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    for tiny in TinyModel::all() {
        tiny.build().write(&path).unwrap();
        let prompt: Vec<u32> = (0..77).map(|i| i * 31 % 320).collect();
        let runs: Vec<(&str, Vec<f32>)> = simd::dispatch::available()
            .into_iter()
            .map(|kernels| {
                let mut last = Vec::new();
                greedy(&mut open(&path, &options(8), kernels), &prompt, 4, |_, logits| last = logits.to_vec());
                (kernels.name, last)
            })
            .collect();
        for pair in runs.windows(2) {
            let rounded = pair[1].0 == "portable" || tiny.quant.block_size > 1;
            let close = |(a, b): (&f32, &f32)| if rounded { (a - b).abs() < 1e-3 } else { a.to_bits() == b.to_bits() };
            assert!(pair[0].1.iter().zip(&pair[1].1).all(close), "{}: {} and {} differ", tiny.name(), pair[0].0, pair[1].0);
        }
    }
}
