//! Checks that prompts with rows of embeddings have the same bits at any load: in chunks of several sizes, with and without a reused
//! prefix, after a preemption, and in groups that share the prompt.

use std::path::Path;

use crate::backends::{Factory, Work, gpu, on_cpu, on_gpu, prompts, prompts_have_the_same_bits};
use crate::conversations::{Load, Runner};
use crate::recorder::Seen;
use fixtures::architectures::architectures;
use scheduler::{Items, Layout, RowRun};

/// Plain attention, windows with scaled embeddings, and experts.
const MODELS: [&str; 3] = ["llama-dense", "gemma3-dense", "gpt-oss-moe"];
/// Recurrent state, alone and beside attention.
const RECURRENT: [&str; 2] = ["mamba2-dense", "falcon-h1-dense"];
const VOCAB: u32 = 128;
/// Tokens before a shared run: a block and a little more.
const SHARED: usize = 33;
/// The most rows of all runs of a prompt.
const MOST_ROWS: u32 = 72;

/// Rows of about the size of a token's embedding. Each source has its own.
fn run(source: u8, num_rows: usize, hidden: usize, layout: Layout) -> RowRun {
    let float = |i: usize| (i as u32 + 7919 * u32::from(source)).wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5;
    let embeddings = (0..num_rows * hidden).map(float).collect();
    // A whole run must fit the smallest steps.
    RowRun { source: [source; 32], embeddings, num_rows, layout, is_whole: source % 2 == 1 }
}

fn line(_num_rows: usize) -> Layout {
    Layout::Line
}

/// Prompts with one or two runs. Every other prompt begins as others do, with the same run. `layout`: a run's, by its number of rows.
fn with_runs(hidden: usize, layout: fn(usize) -> Layout, texts: Vec<Vec<u32>>) -> Vec<Items> {
    let run = |source: u8, num_rows: usize| run(source, num_rows, hidden, layout(num_rows));
    let with_run = |(n, mut text): (usize, Vec<u32>)| {
        let shared = n.is_multiple_of(2);
        let rest = text.split_off(if shared { text.len().min(SHARED) } else { text.len() / 3 });
        let mut runs = vec![(run(if shared { 1 } else { n as u8 }, 36), rest)];
        if n.is_multiple_of(3) {
            let half = runs[0].1.len() / 2;
            let rest = runs[0].1.split_off(half);
            runs.push((run(100 + n as u8, 20 + n % 16), rest));
        }
        Items::with_runs(text, runs)
    };
    texts.into_iter().enumerate().map(with_run).collect()
}

fn rows_have_the_same_bits(open: Factory, (backend, names): (&str, [&str; 3]), dir: &Path, layout: fn(usize) -> Layout, in_graphs: bool) {
    let work = Work { vocab: VOCAB, count: 24, longest: 150 + MOST_ROWS, tokens: 72, in_graphs };
    let (_, models) = architectures();
    for name in names {
        let path = models.iter().find(|model| model.name == name).expect(name).write(dir);
        let (name, hidden) = (format!("{backend}-{name} rows"), open(&path, 1).spec().hidden_dim);
        let prompts = with_runs(hidden, layout, prompts(VOCAB, work.count, 150));
        prompts_have_the_same_bits(open, (&path, &name), &prompts, &work);
    }
}

#[test]
fn prompts_with_rows_have_the_same_bits_at_any_load() {
    rows_have_the_same_bits(&on_cpu, ("cpu", MODELS), tempfile::tempdir().unwrap().path(), line, false);
}

/// A recurrent model continues only from a checkpoint, which the first round leaves for the second.
#[test]
fn prompts_with_rows_have_the_same_bits_from_checkpoints() {
    let ((_, models), dir) = (architectures(), tempfile::tempdir().unwrap());
    for name in RECURRENT {
        let (path, seen) = (models.iter().find(|model| model.name == name).expect(name).write(dir.path()), Seen::default());
        let prompts = with_runs(on_cpu(&path, 1).spec().hidden_dim, line, prompts(VOCAB, 8, 150));
        let alone = Load { num_blocks: 64, max_batch_tokens: 256, max_running: 1, prefix_cache: false, n: 1 };
        let (answers, _) = Runner::new(&path, &format!("{name} rows"), &alone, &seen).run(&prompts);
        for (max_batch_tokens, num_blocks) in [(41, 64), (100, 20)] {
            let load = Load { num_blocks, max_batch_tokens, max_running: 4, prefix_cache: true, n: 1 };
            let together = Runner::new(&path, &format!("{name} rows"), &load, &seen);
            assert_eq!(together.run(&prompts).0, answers, "{name}: {load:?}");
            let (again, cached) = together.run(&prompts);
            assert!(again == answers && cached > 0, "{name}: {load:?}: {cached} cached tokens");
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn prompts_with_rows_have_the_same_bits_at_any_load_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    rows_have_the_same_bits(&on_gpu, ("cuda", MODELS), dir.path(), line, true);
}

/// The engine for load tests, whose tokens depend on positions alone. A grid takes fewer positions than rows, so a position after one that
/// was taken for an index would change the text.
#[cfg(feature = "test-engine")]
mod paced {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use engine::{Engine, EngineOptions, Paced};
    use gguf::GgufFile;
    use model::Weights;

    fn open(path: &Path, num_blocks: usize) -> Box<dyn Engine> {
        let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
        let kv_tokens = num_blocks * 32;
        let options = EngineOptions { context: 512, kv_tokens, max_slots: 32, max_batch_tokens: 512, ..EngineOptions::default() };
        // Without a pace, sequences could end before the next ones are enqueued.
        engine::open_on(Box::new(Paced { step_time: Duration::from_micros(100) }), weights, &options).unwrap()
    }

    fn grid(num_rows: usize) -> Layout {
        let height = (1..7).rev().find(|height| num_rows.is_multiple_of(*height)).unwrap();
        Layout::Grid { height: height as u32, width: (num_rows / height) as u32 }
    }

    #[test]
    fn prompts_with_rows_have_the_same_bits_at_any_load() {
        rows_have_the_same_bits(&open, ("paced", MODELS), tempfile::tempdir().unwrap().path(), grid, false);
    }
}
