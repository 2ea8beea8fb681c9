//! Decode steps in loops on a GPU give the texts of steps from the host.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::backends::{drain, gpu, prompts};
use engine::{
    BackendKind, Batch, DeviceMemory, Engine, EngineError, EngineInfo, EngineOptions, KvCapacity, LoopLimits, Masks, Resident, StepId,
    StepOutput,
};
use gguf::GgufFile;
use logits::SamplingParams;
use metrics::ModelMetrics;
use model::testing::TinyModel;
use model::{Arch, ModelSpec, QUANTS, Weights};
use scheduler::{Event, EventStream, Handle, NewSequence, SchedulerOptions};

/// Counts the steps of loops whose ids were collected, and the loops that ended early.
struct Counted {
    inner: Box<dyn Engine>,
    left: std::collections::HashMap<u64, u32>,
    steps: Arc<AtomicU32>,
    cut: Arc<AtomicU32>,
}

impl Engine for Counted {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }
    fn kv_capacity(&self) -> KvCapacity {
        self.inner.kv_capacity()
    }
    fn max_slots(&self) -> usize {
        self.inner.max_slots()
    }
    fn max_in_flight(&self) -> usize {
        self.inner.max_in_flight()
    }
    fn info(&self) -> EngineInfo {
        self.inner.info()
    }
    fn num_backed_blocks(&self) -> usize {
        self.inner.num_backed_blocks()
    }
    fn resize_cache(&mut self, num_blocks: usize) -> Result<usize, EngineError> {
        self.inner.resize_cache(num_blocks)
    }
    fn memory(&self) -> Option<DeviceMemory> {
        self.inner.memory()
    }
    fn loop_limits(&self) -> Option<LoopLimits> {
        self.inner.loop_limits()
    }
    fn end_loops(&mut self) {
        self.inner.end_loops();
    }
    fn submit(&mut self, batch: &Batch) -> Result<StepId, EngineError> {
        let step = self.inner.submit(batch)?;
        self.left.insert(step.0, batch.loop_steps);
        Ok(step)
    }
    fn sample(&mut self, step: StepId, masks: &Masks) -> Result<(), EngineError> {
        self.inner.sample(step, masks)
    }
    fn collect(&mut self, step: StepId, out: &mut StepOutput) -> Result<(), EngineError> {
        self.inner.collect(step, out)?;
        let left = self.left.get_mut(&step.0).expect("a step in flight");
        if *left > 0 && !out.sampled.is_empty() {
            self.steps.fetch_add(1, Ordering::Relaxed);
            *left -= 1;
        }
        if !out.goes_on {
            self.cut.fetch_add(u32::from(*left > 0), Ordering::Relaxed);
            self.left.remove(&step.0);
        }
        Ok(())
    }
}

/// What is generated: sequences that begin at once, and some that begin, or leave, while the others decode.
struct Scene {
    sequences: Vec<NewSequence>,
    late: Vec<NewSequence>,
    /// The number of sequences whose clients leave after a while. Their texts are not compared.
    leavers: usize,
}

/// Greedy, drawn and with penalties, in turn. `stops`: ends each text at its own token of this number, if that is a new one.
fn sequences(vocab: u32, count: usize, tokens: u32) -> Vec<NewSequence> {
    let kinds = [
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.9, seed: 11, ..SamplingParams::greedy() },
        SamplingParams { temperature: 0.7, top_p: 0.9, top_k: 40, seed: 5, ..SamplingParams::greedy() },
        SamplingParams { repetition_penalty: 1.3, presence_penalty: 0.4, frequency_penalty: 0.2, ..SamplingParams::greedy() },
    ];
    let of = |(i, prompt): (usize, Vec<u32>)| NewSequence::new(prompt, kinds[i % 4].clone(), tokens - (i as u32 * 13) % (tokens / 2));
    prompts(vocab, count, 90).into_iter().enumerate().map(of).collect()
}

/// Runs a scene. Returns the texts, the number of steps in loops, and the number of loops that ended early.
fn run(path: &Path, resident: Resident, scene: &Scene) -> (Vec<Vec<u32>>, u32, u32) {
    let weights = Weights::load(Arc::new(GgufFile::open(path).unwrap())).unwrap();
    let options = EngineOptions { context: 1024, kv_tokens: 65536, max_slots: 72, max_batch_tokens: 1024, resident, ..Default::default() };
    let inner = engine::open(weights, &options, Some(BackendKind::Cuda)).expect("an engine on the GPU");
    assert_eq!(inner.loop_limits().is_some(), resident == Resident::On, "the device has loops");
    let (steps, cut) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
    let engine = Counted { inner, left: Default::default(), steps: steps.clone(), cut: cut.clone() };
    let scheduling = SchedulerOptions {
        max_batch_tokens: 1024,
        max_running: 72,
        max_waiting: 1024,
        max_waiting_tokens: 0,
        prefix_cache: true,
        drafts: false,
    };
    let handle = Handle::spawn(Box::new(engine), scheduling, ModelMetrics::for_model("loops"));
    let streams: Vec<EventStream> = scene.sequences.iter().map(|new| handle.enqueue(new.clone()).unwrap()).collect();
    let (sender, receiver) = mpsc::channel();
    let mut readers = Vec::new();
    for (i, mut stream) in streams.into_iter().enumerate() {
        let (sender, leaves) = (sender.clone(), i < scene.leavers);
        readers.push(thread::spawn(move || {
            if leaves {
                (0..60 + 20 * i).for_each(|_| _ = stream.blocking_next());
                return Vec::new();
            }
            let mut text = Vec::new();
            while text.len() < 40 {
                match stream.blocking_next() {
                    Some(Event::Token { id, .. }) => text.push(id),
                    Some(Event::Failed(why)) => panic!("{why}"),
                    Some(_) => {}
                    None => return text,
                }
            }
            let _ = sender.send(());
            text.extend(drain(stream));
            text
        }));
    }
    drop(sender);
    // The late ones come while the others decode.
    let mut texts = Vec::new();
    for new in &scene.late {
        // Without an answer that is so far: all were, or have ended.
        let _ = receiver.recv_timeout(Duration::from_secs(20));
        thread::sleep(Duration::from_millis(3));
        let stream = handle.enqueue(new.clone()).unwrap();
        texts.push(thread::spawn(move || drain(stream)));
    }
    let texts = readers.into_iter().chain(texts).map(|reader| reader.join().unwrap()).collect();
    handle.stop();
    assert!(handle.wait_ended(Duration::from_secs(60)), "the engine does not end");
    (texts, steps.load(Ordering::Relaxed), cut.load(Ordering::Relaxed))
}

#[test]
#[ignore = "needs a GPU"]
fn loops_give_the_texts_of_single_steps_on_the_gpu() {
    let _gpu = gpu();
    let dir = tempfile::tempdir().unwrap();
    let quant = |name: &str| QUANTS.iter().find(|quant| quant.name == name).unwrap();
    // A single late request may arrive between two loops if other tests use the machine.
    let mut num_cut = 0;
    for (arch, quant) in [("llama", quant("Q4_K")), ("gemma3", quant("Q8_0")), ("qwen2", quant("F16"))] {
        let path = dir.path().join(arch);
        let tiny = TinyModel { quant, context_length: 1024, ..TinyModel::new(Arch::by_name(arch).unwrap()) };
        tiny.build().write(&path).unwrap();
        let vocab = 300;
        for (count, late, leavers) in [(1, 0, 0), (1, 2, 0), (8, 0, 0), (8, 3, 2), (64, 0, 0), (64, 3, 4)] {
            let mut scene = Scene { sequences: sequences(vocab, count, 600), late: sequences(vocab, late, 200), leavers };
            let begin = Instant::now();
            let (plain, none, _) = run(&path, Resident::Off, &scene);
            let of_host = begin.elapsed();
            assert_eq!(none, 0);
            let begin = Instant::now();
            let (looped, steps, cut) = run(&path, Resident::On, &scene);
            println!("{arch} × {count} + {late} − {leavers}: {steps} steps in loops, {cut} cut; {of_host:.2?}, {:.2?}", begin.elapsed());
            assert!(plain == looped, "{arch}, {count} sequences: the texts differ");
            assert!(steps > 50, "{arch}, {count} sequences: {steps} steps in loops");
            num_cut += if late + leavers > 0 { cut } else { 0 };
            // Again with ends by stop ids.
            for (new, text) in scene.sequences.iter_mut().zip(&plain) {
                let fresh = (120..text.len()).find(|&at| !text[..at].contains(&text[at]));
                new.stop_ids.extend(fresh.map(|at| text[at]));
            }
            if late == 0 {
                let (plain, _, _) = run(&path, Resident::Off, &scene);
                let (looped, steps, cut) = run(&path, Resident::On, &scene);
                let stopped = plain.iter().zip(&scene.sequences).filter(|(text, new)| text.len() < new.max_tokens as usize).count();
                println!("  with stop ids: {stopped} stop, {steps} steps in loops, {cut} cut");
                assert!(plain == looped, "{arch}, {count} sequences with stop ids: the texts differ");
            }
        }
    }
    assert!(num_cut > 0, "nothing ended a loop early");
}
