//! Runs a GGUF file on the CPU engine: a language model for a few tokens, a picture encoder for one small picture.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::{BackendKind, EncoderOptions, EngineOptions, Picture};
use gguf::{Backing, GgufFile};
use logits::SamplingParams;
use model::VisionWeights;
use scheduler::{NewSequence, SchedulerOptions, Watchdog};
use serving::{ModelFile, RunOptions};

use crate::gguf_file::file;

/// Longest sequence [tokens]. A model made for shorter sequences runs with its own limit.
const CONTEXT: usize = 32;
const NUM_TOKENS: u32 = 4;

/// The most patches and pixels of the picture.
const MOST_PATCHES: usize = 64;
const MOST_PIXELS: usize = 1 << 16;

pub fn body(input: &[u8]) {
    let memory = file(input);
    encode(memory.path());
    let Ok(model) = ModelFile::open(memory.path(), Backing::Mapped) else { return };
    let context = model.context_length().min(CONTEXT);
    let options = RunOptions {
        mmproj: None,
        draft: None,
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
        scheduler: SchedulerOptions {
            max_batch_tokens: 0,
            max_running: 0,
            max_waiting: 8,
            max_waiting_tokens: 0,
            prefix_cache: true,
            drafts: true,
        },
        disk: None,
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

/// Encodes the smallest picture that the encoder in a file takes.
fn encode(path: &Path) {
    let Ok(file) = GgufFile::open_with(path, Backing::Mapped) else { return };
    let Ok(weights) = VisionWeights::load(Arc::new(file)) else { return };
    let (spec, patch) = (&weights.spec, weights.spec.patch_size);
    let own = spec.image_size / patch;
    let Some(side) = [spec.merge, own].into_iter().find(|&side| spec.check_grid([side, side]).is_ok()) else { return };
    if side * side > MOST_PATCHES || (side * patch).pow(2) > MOST_PIXELS {
        return;
    }
    let (width, rows) = (spec.row_width(), spec.num_rows([side, side]));
    let Ok(mut encoder) =
        engine::open_encoder(weights, EncoderOptions { place: (BackendKind::Cpu, 0), threads: 1, most_patches: MOST_PATCHES })
    else {
        return;
    };
    let rgb = vec![128; 3 * (side * patch).pow(2)];
    let encoded = encoder.encode(&[Picture { width: side * patch, height: side * patch, rgb: &rgb }]).expect("a picture that it takes");
    assert_eq!(encoded[0].len(), rows * width);
}
