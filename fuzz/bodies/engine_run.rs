//! Runs a GGUF file on the CPU engine for a few tokens.

use std::time::Duration;

use engine::{BackendKind, EngineOptions};
use gguf::Backing;
use logits::SamplingParams;
use scheduler::{NewSequence, SchedulerOptions, Watchdog};
use serving::{ModelFile, RunOptions};

use crate::gguf_file::file;

/// Longest sequence [tokens]. A model made for shorter sequences runs with its own limit.
const CONTEXT: usize = 32;
const NUM_TOKENS: u32 = 4;

pub fn body(input: &[u8]) {
    let memory = file(input);
    let Ok(model) = ModelFile::open(memory.path(), Backing::Mapped) else { return };
    let context = model.context_length().min(CONTEXT);
    let options = RunOptions {
        name: "fuzz".into(),
        engine: EngineOptions {
            threads: 1,
            context,
            kv_tokens: CONTEXT,
            max_slots: 1,
            max_batch_tokens: CONTEXT,
            state_slots: 2,
            ..EngineOptions::default()
        },
        scheduler: SchedulerOptions { max_batch_tokens: 0, max_running: 0, max_waiting: 8, max_waiting_tokens: 0, prefix_cache: true },
        share: 1.0,
        cache_idle: Duration::from_secs(300),
        watchdog: Watchdog { step_timeout: Duration::from_secs(60), on_fault: |_| {} },
    };
    let device = engine::device(BackendKind::Cpu, 0).expect("a processor");
    let Ok(base) = model.start(device, options) else { return };
    let last = base.spec.vocab_size as u32 - 1;
    let prompt: Vec<u32> = [1, 2, last].iter().map(|id| *id.min(&last)).take(context.saturating_sub(1)).collect();
    let room = context.saturating_sub(prompt.len()) as u32;
    if !prompt.is_empty()
        && let Ok(mut events) = base.handle.enqueue(NewSequence::new(prompt, SamplingParams::greedy(), room.min(NUM_TOKENS)))
    {
        while events.blocking_next().is_some() {}
    }
    base.handle.stop();
}
