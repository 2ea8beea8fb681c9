//! Checks real models on the CPU, with recurrent state and with windows: a row's logits have the same bits, however its sequence reached
//! it.

use std::path::Path;
use std::sync::Arc;

use crate::recorder::{Recorder, Seen};
use engine::CacheType;
use engine::cpu::{CpuEngine, CpuOptions, Cut, simd};
use fixtures::architectures::architectures;
use gguf::GgufFile;
use logits::SamplingParams;
use metrics::ModelMetrics;
use model::Weights;
use scheduler::{Event, EventStream, Handle, Items, NewSequence, SchedulerOptions, SequenceGroup};

/// Recurrent mixers of each kind, alone and together with attention, and windows of each kind.
const MODELS: [&str; 9] = [
    "qwen3next-moe",
    "granitehybrid-dense",
    "mamba2-dense",
    "lfm2-dense",
    "falcon-h1-dense",
    "minimax-01-moe",
    "gemma3-dense",
    "gpt-oss-moe",
    "llama4-moe",
];
const TOKENS: u32 = 9;

/// How the sequences of a model are run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// KV blocks per cache group.
    pub num_blocks: usize,
    pub max_batch_tokens: usize,
    pub max_running: usize,
    pub prefix_cache: bool,
    /// Sequences per prompt.
    pub n: usize,
}

pub struct Runner {
    handle: Handle,
    metrics: Arc<ModelMetrics>,
    n: usize,
}

impl Runner {
    pub fn new(path: &Path, name: &str, load: &Load, seen: &Seen) -> Self {
        let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
        let num_blocks = load.num_blocks * weights.spec.cache_groups().len();
        let options = CpuOptions {
            threads: 2,
            context: 512,
            num_blocks,
            least_blocks: num_blocks,
            block_size: 32,
            cache_type: CacheType::F32,
            max_slots: 8,
            max_batch_tokens: 256,
            state_slots: 24,
            draft_states: 0,
            draft_head: false,
            max_adapters: 4,
            cut: Cut::default(),
        };
        let engine = CpuEngine::new(weights, &options, simd::dispatch::available()[0]).unwrap();
        let Load { max_batch_tokens, max_running, prefix_cache, .. } = *load;
        let options =
            SchedulerOptions { max_batch_tokens, max_running, max_waiting: 100, max_waiting_tokens: 0, prefix_cache, drafts: false };
        let metrics = ModelMetrics::for_model(&format!("{name} {load:?}"));
        let engine = Recorder::new(Box::new(engine), seen);
        Self { handle: Handle::spawn(Box::new(engine), options, metrics.clone()), metrics, n: load.n }
    }

    /// The answers to all prompts at once, and the total of tokens found in the cache.
    pub fn run<P: Clone + Into<Items>>(&self, prompts: &[P]) -> (Vec<Vec<u32>>, u32) {
        let streams: Vec<Vec<_>> = prompts
            .iter()
            .map(|prompt| {
                let sequence_group = (self.n > 1).then(SequenceGroup::unique);
                let new = NewSequence { sequence_group, ..NewSequence::new(prompt.clone(), SamplingParams::greedy(), TOKENS) };
                (0..self.n).map(|_| self.handle.enqueue(new.clone()).unwrap()).collect()
            })
            .collect();
        let mut all_cached = 0;
        let mut answer = |mut stream: EventStream| {
            let mut tokens = Vec::new();
            loop {
                match stream.blocking_next() {
                    Some(Event::Token { id, .. }) => tokens.push(id),
                    Some(Event::Finished { cached_tokens, .. }) => {
                        all_cached += cached_tokens;
                        return tokens;
                    }
                    other => panic!("{other:?}"),
                }
            }
        };
        let answers: Vec<Vec<u32>> = streams
            .into_iter()
            .map(|sequence_group| {
                let mut answers: Vec<Vec<u32>> = sequence_group.into_iter().map(&mut answer).collect();
                answers.dedup();
                assert_eq!(answers.len(), 1, "sequences with the same prompt differ");
                answers.remove(0)
            })
            .collect();
        (answers, all_cached)
    }
}

/// Prompts that begin alike, and others.
fn prompts() -> Vec<Vec<u32>> {
    let id = |i: u32, salt: u32| (i * 37 + i * i * salt + 11 * salt) % 128;
    let shared = (0..6).map(|n| (0..70).map(|i| id(i, 1)).chain((0..20 + 7 * n).map(|i| id(i, 2 + n))).collect());
    shared.chain((0..2).map(|n| (0..150 - 117 * n).map(|i| id(i, 20 + n)).collect())).collect()
}

#[test]
fn logits_have_the_same_bits_with_and_without_checkpoints_and_freed_windows() {
    let (_, models) = architectures();
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let path = models.iter().find(|model| model.name == name).unwrap().write(folder.path());
        let seen = Seen::default();
        let alone = Load { num_blocks: 16, max_batch_tokens: 256, max_running: 1, prefix_cache: false, n: 1 };
        let runner = Runner::new(&path, name, &alone, &seen);
        let first = prompts();
        let (answers, cached) = runner.run(&first);
        // The next turn of each conversation.
        let second: Vec<Vec<u32>> = first.iter().zip(&answers).map(|(prompt, answer)| [&prompt[..], answer, &[5, 6, 7]].concat()).collect();
        let (last, more) = runner.run(&second);
        assert_eq!(cached + more, 0);
        for load in [
            Load { num_blocks: 64, max_running: 8, max_batch_tokens: 41, prefix_cache: true, ..alone },
            Load { num_blocks: 64, max_running: 2, max_batch_tokens: 256, prefix_cache: true, ..alone },
            Load { num_blocks: 14, max_running: 8, max_batch_tokens: 64, prefix_cache: true, ..alone },
            Load { num_blocks: 64, max_running: 8, max_batch_tokens: 100, prefix_cache: true, n: 3 },
            Load { num_blocks: 64, max_running: 8, max_batch_tokens: 100, prefix_cache: false, n: 3 },
        ] {
            let runner = Runner::new(&path, name, &load, &seen);
            assert_eq!(runner.run(&first).0, answers, "{name}: {load:?}");
            let (got, cached) = runner.run(&second);
            assert_eq!(got, last, "{name}: {load:?}");
            println!("{name}: {cached} tokens of the second turn cached, {load:?}");
            let is_tight = load.num_blocks < 16;
            assert!(cached > 0 || !load.prefix_cache || is_tight, "{name}: {load:?}");
            let preempted = runner.metrics.num_preemptions_total.get();
            println!("{name}: {preempted} preemptions");
        }
        assert!(seen.repeats() >= 5 * seen.rows(), "{name}");
    }
}
