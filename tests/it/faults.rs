//! Checks that a fault during a run fails only the request it concerns, and that the ledger of device memory is right.

use std::path::Path;

use engine::{BackendKind, Engine, device};
use gguf::GgufFile;
use logits::SamplingParams;
use metrics::ModelMetrics;
use model::testing::TinyModel;
use model::{ARCHS, QUANTS};
use scheduler::{Event, Handle, NewSequence, SchedulerOptions};

use crate::backends::{Factory, gpu, gpu_alone, on_cpu, on_gpu};

/// The id whose embedding is broken.
const BROKEN: u32 = 7;

/// Writes a model with a separate head, in which the embedding of one id holds `value`.
fn write_broken(path: &Path, value: half::f16) {
    let Some(quant) = QUANTS.iter().find(|quant| quant.name == "F16") else { unreachable!("F16 has a row") };
    TinyModel { quant, optional: true, ..TinyModel::new(&ARCHS[0]) }.build().write(path).unwrap();
    let file = GgufFile::open(path).unwrap();
    assert!(file.tensor("output.weight").is_some(), "with a shared head every row of logits would be broken");
    let embedding = file.tensor("token_embd.weight").unwrap();
    let at = embedding.offset as usize + (BROKEN as usize * embedding.dims[0] as usize + 3) * 2;
    drop(file);
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

fn spawn(engine: Box<dyn Engine>) -> Handle {
    let options = SchedulerOptions {
        max_batch_tokens: 48,
        max_running: 8,
        max_waiting: 64,
        max_waiting_tokens: 0,
        prefix_cache: true,
        drafts: false,
    };
    Handle::spawn(engine, options, ModelMetrics::for_model("faults"))
}

/// The texts of prompts that run at once, or the reason why a prompt failed.
fn texts(handle: &Handle, prompts: &[Vec<u32>]) -> Vec<Result<Vec<u32>, String>> {
    // The broken id may be read but must not be sampled.
    let params = SamplingParams { logit_bias: vec![(BROKEN, -100.0)], ..SamplingParams::greedy() };
    let sequence = |prompt: &Vec<u32>| NewSequence::new(prompt.clone(), params.clone(), 40);
    let streams: Vec<_> = prompts.iter().map(|prompt| handle.enqueue(sequence(prompt)).unwrap()).collect();
    let text = |mut stream: scheduler::EventStream| {
        let mut text = Vec::new();
        loop {
            match stream.blocking_next() {
                Some(Event::Token { id, .. }) => text.push(id),
                Some(Event::Failed(why)) => return Err(why),
                _ => return Ok(text),
            }
        }
    };
    streams.into_iter().map(text).collect()
}

/// During and after a request whose logits are not finite, other requests get the same text as without it, even in the blocks that it used.
fn broken_logits_fail_alone(open: Factory, dir: &Path) {
    for value in [half::f16::NAN, half::f16::INFINITY, half::f16::NEG_INFINITY] {
        let path = dir.join("broken.gguf");
        write_broken(&path, value);
        let good: Vec<Vec<u32>> = (0..6u32).map(|n| (0..20 + 9 * n).map(|i| 8 + (i * 31 + n * 57) % 300).collect()).collect();
        let mut bad = good.clone();
        bad.iter_mut().enumerate().for_each(|(n, prompt)| prompt[3 * n] = BROKEN);
        // Six prompts of at most 65 tokens, with 40 generated tokens each, so blocks are reused.
        let handle = spawn(open(&path, 24));
        let alone = texts(&handle, &good);
        assert!(alone.iter().all(|text| text.as_ref().is_ok_and(|ids| ids.len() == 40)), "{alone:?}");
        for round in 0..3 {
            let mixed: Vec<Vec<u32>> = bad.iter().zip(&good).flat_map(|(bad, good)| [bad.clone(), good.clone()]).collect();
            let got = texts(&handle, &mixed);
            for (n, pair) in got.chunks(2).enumerate() {
                assert!(pair[0].as_ref().is_err_and(|why| why.contains("not finite")), "{value}, round {round}: {:?}", pair[0]);
                assert_eq!(pair[1], alone[n], "{value}, round {round}");
            }
            assert_eq!(texts(&handle, &bad).iter().filter(|text| text.is_err()).count(), bad.len());
            assert_eq!(texts(&handle, &good), alone, "{value}, after round {round}");
        }
        assert!(handle.is_alive());
    }
}

#[test]
fn logits_that_are_not_finite_fail_their_request_alone() {
    broken_logits_fail_alone(&on_cpu, tempfile::tempdir().unwrap().path());
}

#[test]
#[ignore = "needs a GPU"]
fn logits_that_are_not_finite_fail_their_request_alone_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    broken_logits_fail_alone(&on_gpu, dir.path());
}

/// A model fails with a message if its file is truncated or overwritten in place, and only that model does. Its tensors are longer than the
/// pages that remain.
#[test]
fn a_model_whose_mapped_file_changes_in_place_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        TinyModel { vocab_size: 2000, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
        path
    };
    let other = spawn(on_cpu(&write("other.gguf"), 24));
    let prompts = [(8..30).collect::<Vec<u32>>()];
    let alone = texts(&other, &prompts);
    type Change = fn(&std::fs::File);
    let changes: [(Change, &str); 3] = [
        (|file| file.set_len(5000).unwrap(), "a part of the file could not be read"),
        (|file| file.set_len(0).unwrap(), "a part of the file could not be read"),
        (|file| file.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5)).unwrap(), "was written to"),
    ];
    for (change, expected) in changes {
        let path = write("cut.gguf");
        let handle = spawn(on_cpu(&path, 24));
        assert_eq!(texts(&handle, &prompts), alone);
        change(&std::fs::OpenOptions::new().write(true).open(&path).unwrap());
        if expected == "was written to" {
            // The file's state is checked once per second.
            std::thread::sleep(std::time::Duration::from_millis(1100));
        }
        let failed = texts(&handle, &prompts);
        assert!(failed[0].as_ref().is_err_and(|why| why.contains(expected) && !why.contains("cut.gguf")), "{failed:?}");
        assert!(!handle.is_alive() && !handle.is_lost());
        assert_eq!(texts(&other, &prompts), alone, "another model");
    }
    // A file that is truncated while it is opened, or between opening and loading.
    let path = write("cut.gguf");
    let file = GgufFile::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(model::Weights::load(file.into()).is_err_and(|error| error.to_string().contains("has 5000 now")));
}

/// A request with every list at its greatest length. If a device had smaller limits than the API, the request would fail the step of other
/// requests.
fn long_lists_are_accepted(open: Factory, dir: &Path) {
    let path = dir.join("lists.gguf");
    TinyModel { vocab_size: 6000, context_length: 1024, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
    let handle = spawn(open(&path, 32));
    let (first, allowed) = (200, 5999);
    let params = SamplingParams {
        repetition_penalty: 1.1,
        logit_bias: (0..4096).map(|i| (i, -1000.0)).collect(),
        min_tokens: 40,
        suppressed: (4096..allowed).collect(),
        ..SamplingParams::greedy()
    };
    let (prompt, stop_ids): (Vec<u32>, _) = ((first..first + 500).collect(), params.suppressed.clone());
    let mut stream = handle.enqueue(NewSequence { stop_ids, ..NewSequence::new(prompt, params.clone(), 40) }).unwrap();
    let mut text = Vec::new();
    loop {
        match stream.blocking_next() {
            Some(Event::Token { id, .. }) => text.push(id),
            Some(Event::Failed(why)) => panic!("{why}"),
            _ => break,
        }
    }
    assert_eq!(text, [allowed; 40], "the only id that is allowed");
}

#[test]
fn the_longest_lists_of_a_request_are_accepted() {
    long_lists_are_accepted(&on_cpu, tempfile::tempdir().unwrap().path());
}

#[test]
#[ignore = "needs a GPU"]
fn the_longest_lists_of_a_request_are_accepted_on_the_gpu() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu());
    long_lists_are_accepted(&on_gpu, dir.path());
}

/// The ledger agrees within 2 %, after the driver has allocated its memory per process: its context and the kernels.
#[test]
#[ignore = "needs a GPU"]
fn the_ledger_of_device_memory_on_the_gpu_agrees_with_the_driver() {
    let (dir, _gpu) = (tempfile::tempdir().unwrap(), gpu_alone());
    for (hidden_dim, num_blocks) in [(256, 16384), (1024, 512)] {
        let path = dir.path().join("ledger.gguf");
        TinyModel { hidden_dim, ffn_dim: 4 * hidden_dim, vocab_size: 5000, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
        // Loads the kernels of this shape.
        drop(on_gpu(&path, num_blocks));
        let free_without = device(BackendKind::Cuda, 0).unwrap().describe().unwrap().memory.unwrap().free;
        let engine = on_gpu(&path, num_blocks);
        let memory = engine.memory().unwrap();
        let taken = free_without - memory.free;
        let off = (memory.held as f64 - taken as f64).abs() / taken as f64;
        println!("held {} of {taken} bytes taken: {:.2} % off", memory.held, 100.0 * off);
        assert!(off < 0.02, "the ledger says {}, the driver {taken}", memory.held);
    }
}

/// The API's bounds do not exceed the device's.
#[test]
fn the_device_accepts_what_the_api_accepts() {
    let constant = |path: &str, name: &str| -> u64 {
        let text = std::fs::read_to_string(crate::source::root().join(path)).unwrap();
        let line = text.lines().find(|line| line.contains(name) && line.contains('=')).unwrap_or_else(|| panic!("{path} has no {name}"));
        line.split('=').nth(1).unwrap().split(';').next().unwrap().trim().parse().unwrap()
    };
    let (api, device) = ("src/api/openai/convert/generation.rs", "cuda/sampling/sampling.h");
    assert!(constant(device, "MAX_BIASES") >= constant(api, "MAX_BIAS"));
    // The vocabulary's end tokens are added to those of the request.
    assert!(constant(device, "MAX_SUPPRESSED") >= constant(api, "MAX_STOP_IDS") + 64);
}
