//! Checks that drafts change no token and no log-probability: every way to draw, under grammars, alone and together, with too few blocks,
//! with cached prefixes and in sequence groups.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fixtures::architectures::architectures;
use fixtures::draft_heads::{add_draft_head, draft_heads};
use gguf::GgufBuilder;
use logits::{Allowed, Constraint, Grammar, SamplingParams, mask_words};
use metrics::ModelMetrics;
use model::testing::TinyModel;
use model::{ARCHS, Arch};
use scheduler::{
    DraftEngine, DraftOptions, Engines, Event, EventStream, Handle, KnownAnswer, NewSequence, SchedulerOptions, SequenceGroup,
};

use crate::backends::{Factory, gpu, on_cpu, on_cpu_with_head, on_cpu_with_states, on_gpu, prompts};

const VOCAB: u32 = 320;
/// The vocabulary of the fixtures.
const SMALL_VOCAB: u32 = 128;
const TOKENS: u32 = 60;

/// A text: each token with the bits of its log-probabilities, and the stop id that ended it.
type Text = (Vec<(u32, Vec<u32>)>, Option<u32>);

/// Allows a third of the ids at each position, and ends after `len` ids.
#[derive(Clone, Copy, Debug)]
struct Thirds {
    len: usize,
    vocab: u32,
}

struct At(Thirds, usize);

impl Grammar for Thirds {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(At(*self, 0))
    }
}

impl Constraint for At {
    fn accept(&mut self, id: u32) -> Result<(), String> {
        if id as usize % 3 != self.1 % 3 {
            return Err(format!("{id} was not allowed at {}", self.1));
        }
        self.1 += 1;
        Ok(())
    }

    fn allowed(&mut self) -> Result<Allowed, String> {
        if self.1 == self.0.len {
            return Ok(Allowed::End);
        }
        let mut words = vec![0; mask_words(self.0.vocab as usize)];
        (0..self.0.vocab).filter(|id| *id as usize % 3 == self.1 % 3).for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
        Ok(Allowed::Mask(words))
    }

    fn fork(&self) -> Option<Box<dyn Constraint>> {
        Some(Box::new(Self(self.0, self.1)))
    }
}

/// Every way to draw, with and without a grammar and stop ids.
fn sequences(vocab: u32) -> Vec<NewSequence> {
    let greedy = SamplingParams::greedy();
    let seeded = SamplingParams { temperature: 0.9, seed: 7, ..greedy.clone() };
    let filtered = SamplingParams { top_k: 30, top_p: 0.9, min_p: 0.01, seed: 3, ..seeded.clone() };
    let penalised = SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.4, presence_penalty: 0.3, ..seeded.clone() };
    let suppressed =
        SamplingParams { min_tokens: 12, suppressed: (0..vocab).step_by(2).collect(), logit_bias: vec![(7, 3.0)], ..greedy.clone() };
    let ways = [greedy, seeded, filtered, penalised, suppressed];
    let of = |(i, prompt): (usize, Vec<u32>)| {
        let new = NewSequence::new(prompt, ways[i % ways.len()].clone(), 1 + TOKENS - (i % 7) as u32);
        NewSequence {
            num_logprobs: (i % 3 > 0).then_some(4),
            grammar: (i % 4 == 1).then(|| Arc::new(Thirds { len: 20 + i, vocab }) as Arc<dyn Grammar>),
            stop_ids: if i % 5 == 2 { (0..vocab).step_by(41).collect() } else { Vec::new() },
            ..new
        }
    };
    prompts(vocab, 20, 120).into_iter().enumerate().map(of).collect()
}

fn drain(mut stream: EventStream) -> Text {
    let mut text = Vec::new();
    loop {
        match stream.blocking_next() {
            Some(Event::Token { id, logprobs }) => {
                let bits = |(id, x): &(u32, f32)| [*id, x.to_bits()];
                let all = logprobs.iter().flat_map(|all| [all.chosen.to_bits()].into_iter().chain(all.top.iter().flat_map(bits)));
                text.push((id, all.collect()));
            }
            Some(Event::Finished { stopped_by, .. }) => return (text, stopped_by),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Load {
    num_blocks: usize,
    max_batch_tokens: usize,
    max_running: usize,
    relatives: usize,
    drafts: bool,
    /// Whether a draft model guesses, too: the one in [`draft_of`] the model's file.
    model: bool,
}

/// The file of a model's draft model.
fn draft_of(path: &Path) -> PathBuf {
    path.with_extension("draft.gguf")
}

/// One sequence after another, without drafts.
const ALONE: Load = Load { num_blocks: 32, max_batch_tokens: 512, max_running: 1, relatives: 0, drafts: false, model: false };

/// Kinds of load with drafts. `most`: the most sequences that run at once.
fn loads(most: usize) -> [(&'static str, Load); 5] {
    let drafted = Load { drafts: true, ..ALONE };
    let crowd = Load { max_running: most, num_blocks: 128, ..drafted };
    [
        ("alone", drafted),
        ("together", crowd),
        ("chunked", Load { max_batch_tokens: 41, ..crowd }),
        ("preempted", Load { num_blocks: 9, max_batch_tokens: 64, ..crowd }),
        ("in groups", Load { relatives: 2, max_batch_tokens: 100, ..crowd }),
    ]
}

/// Runs all sequences at once. Returns their texts, and the numbers of drafts, right drafts and preemptions.
fn run(open: Factory, path: &Path, name: &str, load: Load, sequences: &[NewSequence]) -> (Vec<Text>, [u64; 3]) {
    let Load { max_batch_tokens, max_running, drafts, .. } = load;
    let options =
        SchedulerOptions { max_batch_tokens, max_running, max_waiting: 512, max_waiting_tokens: 0, prefix_cache: max_running > 1, drafts };
    let metrics = ModelMetrics::for_model(name);
    let draft = load.model.then(|| DraftEngine {
        // Some sequences find no memory there.
        engine: on_cpu(&draft_of(path), load.num_blocks / 2),
        num_ids: VOCAB as usize,
        context: 512,
        pass: 0.05,
    });
    let handle = Handle::spawn_on(Engines { engine: open(path, load.num_blocks), draft }, options, metrics.clone(), None, (None, None));
    let start = |new: &NewSequence| -> Vec<EventStream> {
        let sequence_group = (load.relatives > 0).then(SequenceGroup::unique);
        (0..=load.relatives).map(|_| handle.enqueue(NewSequence { sequence_group, ..new.clone() }).unwrap()).collect()
    };
    let groups: Vec<Vec<EventStream>> = sequences.iter().map(start).collect();
    let alike = |group: Vec<EventStream>| {
        let mut texts: Vec<Text> = group.into_iter().map(drain).collect();
        texts.dedup();
        assert_eq!(texts.len(), 1, "sequences with the same prompt differ");
        texts.remove(0)
    };
    let texts = groups.into_iter().map(alike).collect();
    handle.stop();
    assert!(handle.wait_ended(std::time::Duration::from_secs(60)), "the engine does not end");
    let counters =
        [&metrics.spec_decode_num_draft_tokens_total, &metrics.spec_decode_num_accepted_tokens_total, &metrics.num_preemptions_total];
    (texts, counters.map(|counter| counter.get()))
}

/// Drafts of the known texts, each token of which is right with a probability of its own.
fn with_known(sequences: &[NewSequence], texts: &[Text]) -> Vec<NewSequence> {
    let of = |(i, (new, text)): (usize, (&NewSequence, &Text))| {
        // What follows the stop id is guessed, too.
        let tokens = text.0.iter().map(|(id, _)| *id).chain(text.1).chain([1, 2, 3]).collect();
        let known = Some(KnownAnswer { tokens, accept: [1.0, 0.9, 0.7, 0.3][i % 4] });
        NewSequence { drafts: DraftOptions { known, ..DraftOptions::default() }, ..new.clone() }
    };
    sequences.iter().zip(texts).enumerate().map(of).collect()
}

fn drafts_change_no_bit(open: Factory, backend: &str) {
    let dir = tempfile::tempdir().unwrap();
    // With everything visible, with windows, with experts.
    for arch in [&ARCHS[0], Arch::by_name("gemma3").unwrap(), Arch::by_name("qwen3moe").unwrap()] {
        let name = format!("{backend}-drafts-{}", arch.name);
        let path = dir.path().join(format!("{name}.gguf"));
        TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(arch) }.build().write(&path).unwrap();
        let plain = sequences(VOCAB);
        let (texts, none) = run(open, &path, &format!("{name} without"), ALONE, &plain);
        assert_eq!(none[0], 0);
        let known = with_known(&plain, &texts);
        for (what, load) in loads(16) {
            for (source, sequences) in [("known", &known), ("ngram", &plain)] {
                let name = format!("{name} {what} {source}");
                let (again, [num_drafts, num_right, num_preemptions]) = run(open, &path, &name, load, sequences);
                println!("{name}: {num_right} of {num_drafts} drafts were right, {num_preemptions} preemptions");
                for (i, (text, again)) in texts.iter().zip(&again).enumerate() {
                    assert_eq!(text, again, "{name}: sequence {i}");
                }
                assert!(source == "ngram" || num_right > 50 && num_drafts > num_right, "{name}: {num_right} of {num_drafts}");
            }
        }
    }
}

/// Adds a draft head that is often right: the model's layers add little to a token's embedding, and the head reads little else.
fn with_good_head(file: GgufBuilder) -> GgufBuilder {
    let mut file = add_draft_head(file);
    // the model's own norm follows the head
    file.tensors.retain(|tensor| !tensor.name.contains("shared_head_norm"));
    for tensor in &mut file.tensors {
        let edit = |edited: &dyn Fn(usize, f32) -> f32| -> Vec<u8> {
            let floats = tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            floats.enumerate().flat_map(|(i, x)| edited(i, x).to_le_bytes()).collect()
        };
        let cols = tensor.dims[0] as usize;
        let adds = ["attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight", "post_attention_norm.weight", "post_ffw_norm.weight"];
        if adds.iter().any(|name| tensor.name.ends_with(name)) {
            tensor.bytes = edit(&|_, x| 0.2 * x);
        } else if tensor.name.contains("eh_proj") {
            tensor.bytes = edit(&|i, _| f32::from(u8::from(i % cols == i / cols)));
        } else if tensor.name.contains("nextn") {
            tensor.bytes = edit(&|_, _| 1.0);
        }
    }
    file
}

#[test]
fn draft_heads_change_no_bit_of_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    for arch in [&ARCHS[0], Arch::by_name("gemma3").unwrap(), Arch::by_name("qwen3moe").unwrap()] {
        let name = format!("heads-{}", arch.name);
        let path = dir.path().join(format!("{name}.gguf"));
        with_good_head(TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(arch) }.build()).write(&path).unwrap();
        let plain = sequences(VOCAB);
        let (texts, _) = run(&on_cpu, &path, &format!("{name} without"), ALONE, &plain);
        for (what, load) in loads(16) {
            let name = format!("{name} {what}");
            let (again, [num_drafts, num_right, num_preemptions]) = run(&on_cpu_with_head, &path, &name, load, &plain);
            println!("{name}: {num_right} of {num_drafts} drafts were right, {num_preemptions} preemptions");
            for (i, (text, again)) in texts.iter().zip(&again).enumerate() {
                assert_eq!(text, again, "{name}: sequence {i}");
            }
            assert!(num_right > 50 && num_drafts > num_right, "{name}: {num_right} of {num_drafts}");
        }
    }
}

/// The draft model is the model itself with other weights in one layer, so that some guesses are wrong.
#[test]
fn draft_models_change_no_bit_of_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    for arch in [&ARCHS[0], Arch::by_name("gemma3").unwrap(), Arch::by_name("qwen3moe").unwrap()] {
        let name = format!("model-{}", arch.name);
        let path = dir.path().join(format!("{name}.gguf"));
        let mut file = TinyModel { vocab_size: VOCAB as usize, ..TinyModel::new(arch) }.build();
        file.write(&path).unwrap();
        let changed = file.tensors.iter_mut().find(|tensor| tensor.name.ends_with("attn_output.weight")).unwrap();
        let weaker = changed.bytes.as_chunks::<4>().0.iter().flat_map(|bytes| (0.8 * f32::from_le_bytes(*bytes)).to_le_bytes()).collect();
        changed.bytes = weaker;
        file.write(&draft_of(&path)).unwrap();
        let plain = sequences(VOCAB);
        let (texts, _) = run(&on_cpu, &path, &format!("{name} without"), ALONE, &plain);
        let mut num_wrong = 0;
        for (what, load) in loads(16) {
            let name = format!("{name} {what}");
            let (again, [num_drafts, num_right, num_preemptions]) = run(&on_cpu, &path, &name, Load { model: true, ..load }, &plain);
            println!("{name}: {num_right} of {num_drafts} drafts were right, {num_preemptions} preemptions");
            for (i, (text, again)) in texts.iter().zip(&again).enumerate() {
                assert_eq!(text, again, "{name}: sequence {i}");
            }
            assert!(num_right > 50, "{name}: {num_right} of {num_drafts}");
            num_wrong += num_drafts - num_right;
        }
        assert!(num_wrong > 10, "{name}: {num_wrong} drafts were wrong");
    }
}

/// Compares drafted answers of a model with recurrent state with plain ones, in every kind of load.
fn states_go_back(open: Factory, path: &Path, name: &str) {
    let plain = sequences(SMALL_VOCAB);
    let (texts, _) = run(&on_cpu, path, &format!("{name} without"), ALONE, &plain);
    let known = with_known(&plain, &texts);
    for (what, load) in loads(4) {
        for (source, sequences) in [("known", &known), ("guessed", &plain)] {
            let name = format!("{name} {what} {source}");
            let (again, [num_drafts, num_right, num_preemptions]) = run(open, path, &name, load, sequences);
            println!("{name}: {num_right} of {num_drafts} drafts were right, {num_preemptions} preemptions");
            for (i, (text, again)) in texts.iter().zip(&again).enumerate() {
                assert_eq!(text, again, "{name}: sequence {i}");
            }
            assert!(source != "known" || num_right > 50 && num_drafts > num_right, "{name}: {num_right} of {num_drafts}");
        }
    }
}

/// One model per kind of recurrence.
#[test]
fn recurrent_states_go_back_behind_wrong_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let (_, models) = architectures();
    for name in ["lfm2-dense", "mamba2-dense", "jamba-dense", "qwen35-dense", "qwen3next-moe", "minimax-01-moe", "falcon-h1-dense"] {
        let model = models.iter().find(|model| model.name == name).unwrap_or_else(|| panic!("no model {name}"));
        states_go_back(&on_cpu_with_states, &model.write(dir.path()), &format!("states-{name}"));
    }
    // with a draft head
    for name in ["qwen35", "qwen35moe"] {
        let model = draft_heads().1.into_iter().find(|model| model.model.name == name).unwrap();
        states_go_back(&on_cpu_with_states, &model.model.write(dir.path()), &format!("states-and-head-{name}"));
    }
}

#[test]
fn drafts_change_no_bit_of_an_answer() {
    drafts_change_no_bit(&on_cpu, "cpu");
}

#[test]
#[ignore = "needs a GPU"]
fn drafts_change_no_bit_of_an_answer_on_the_gpu() {
    let _gpu = gpu();
    drafts_change_no_bit(&on_gpu, "cuda");
}
