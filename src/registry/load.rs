//! From a model file to a running engine thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};

use super::{LoadedModel, fault, modified, unix_seconds};
use crate::answer::Style;
use crate::config::{Backend, Config, Engine as EngineConfig, ModelEntry};
use crate::engine::{self, EngineOptions};
use crate::gguf::{Backing, GgufFile, Value};
use crate::grammar::Compiler;
use crate::metrics::ModelMetrics;
use crate::model::Weights;
use crate::scheduler::{Guard, Handle, Pooling, SchedulerOptions};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// What a build calls itself in answers: its version, or what it was told when it was made (a commit, say).
const BUILD: &str = match option_env!("PENSTOCK_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

/// Opens a model file and starts its engine thread.
pub fn load_model(config: &Config, entry: &ModelEntry, path: &Path) -> anyhow::Result<LoadedModel> {
    let engine = &config.engine;
    let file = Arc::new(GgufFile::open_with(path, if engine.mmap { Backing::Mapped } else { Backing::Private })?);
    let (digest, pooling) = (file.digest(), pooling(&file));
    // first of all: a file that is no model at all is told so, not that it has no vocabulary
    let weights = Weights::load(file.clone())?;
    let spec = weights.spec.clone();
    let tokenizer = Arc::new(Tokenizer::open(&file)?);
    let (tokens, rows) = (tokenizer.vocab_size(), spec.vocab_size);
    ensure!(tokens <= rows, "the tokenizer has {tokens} tokens, but the model's embedding has {rows} rows: is it another model's?");
    let template = chat_template(entry, &file, &tokenizer)?;
    let context = entry.context.unwrap_or(engine.context).min(spec.context_length);
    let opened = open_engine(engine, weights, context)?;
    let (info, max_running) = (opened.info(), opened.max_slots());
    let backend = info.backend;
    let options = SchedulerOptions {
        max_batch_tokens: info.max_batch_tokens,
        max_running,
        max_waiting: config.limits.max_queue,
        prefix_cache: engine.prefix_cache,
    };
    let guard = Guard { step_timeout: Duration::from_secs(engine.step_timeout_seconds), on_fault: fault::end_process };
    // A device's faults outlive its engine; those of the CPU do not.
    let guard = (backend != "cpu").then_some(guard);
    let handle = Handle::spawn_guarded(opened, options, ModelMetrics::for_model(&entry.id), guard);
    let created = modified(path).unwrap_or_else(|| unix_seconds(SystemTime::now()));
    let style = template.as_ref().map(|template| Style::of(template, &tokenizer));
    let grammars = Compiler::new(tokenizer.clone(), spec.vocab_size);
    let fingerprint = format!("fp_{}_{digest}_{backend}", BUILD);
    Ok(LoadedModel {
        id: entry.id.clone(),
        created,
        spec,
        context,
        tokenizer,
        grammars,
        template,
        style,
        handle,
        backend,
        pooling,
        fingerprint,
        max_running,
    })
}

fn open_engine(engine: &EngineConfig, weights: Weights, context: usize) -> anyhow::Result<Box<dyn engine::Engine>> {
    let options = options(engine, context)?;
    let backend = match engine.backend {
        Backend::Auto => engine::Backend::Auto,
        Backend::Cpu => engine::Backend::Cpu,
        Backend::Cuda => engine::Backend::Cuda,
    };
    let opened = engine::open(weights, &options, backend);
    opened.with_context(|| format!("engine.backend (--backend) is {}", engine.backend.name()))
}

fn options(engine: &EngineConfig, context: usize) -> anyhow::Result<EngineOptions> {
    let kv = engine.kv_tokens;
    let tokens = kv.next_multiple_of(engine.block_size);
    ensure!(kv == 0 || tokens >= context, "engine.kv_tokens is {kv}, which does not hold one context of {context} tokens");
    Ok(EngineOptions {
        threads: engine.threads,
        device: engine.device,
        context,
        kv_tokens: kv,
        gpu_memory_fraction: engine.gpu_memory_fraction,
        block_size: engine.block_size,
        max_slots: engine.max_running,
        max_batch_tokens: engine.max_batch_tokens,
    })
}

/// As the file says (`pooling_type` in ggml's numbers); one that says nothing is a generative model, whose last row has seen the whole text.
fn pooling(file: &GgufFile) -> Option<Pooling> {
    let key = format!("{}.pooling_type", file.architecture().unwrap_or_default());
    match file.get_u32(&key) {
        Some(1) => Some(Pooling::Mean),
        Some(2) => Some(Pooling::First),
        Some(4) => None,
        _ => Some(Pooling::Last),
    }
}

/// The entry's template, or the file's own.
fn chat_template(entry: &ModelEntry, file: &GgufFile, tokenizer: &Tokenizer) -> anyhow::Result<Option<ChatTemplate>> {
    let source = match (&entry.chat_template, file.get("tokenizer.chat_template")) {
        (Some(path), _) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        (None, Some(Value::String(text))) => text.clone(),
        (None, _) => return Ok(None),
    };
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    ChatTemplate::new(&source, text(tokenizer.bos()), text(tokenizer.eos()))
        .map(Some)
        .with_context(|| format!("model `{}`: `chat_template` in its entry can name another one", entry.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, Surroundings};
    use crate::logits::SamplingParams;
    use crate::model::ARCHS;
    use crate::model::testing::TinyModel;
    use crate::scheduler::{Event, NewSequence};

    /// Row 13: a model that was copied outlives a writer that cuts its file; a mapped one would take the process with it.
    #[test]
    fn a_copied_model_does_not_need_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
        let env = vec![("HOME".into(), "/home/u".into()), ("PENSTOCK__ENGINE__MMAP".into(), "false".into())];
        let config = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap();
        let model = load_model(&config, &config.models[0], &path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let mut stream = model.handle.enqueue(NewSequence::new(vec![1, 2, 3], SamplingParams::greedy(), 4)).unwrap();
        let mut last = None;
        while let Some(event) = stream.blocking_next() {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::Finished { generated_tokens: 4, .. })), "{last:?}");
        assert_eq!((model.backend, model.max_running), ("cpu", 32), "where nothing is set");
    }

    #[test]
    fn a_file_says_how_its_texts_become_vectors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        let of = |kind: Option<u32>| {
            let file = TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build();
            let file = kind.into_iter().fold(file, |file, kind| file.kv("llama.pooling_type", kind));
            file.write(&path).unwrap();
            pooling(&GgufFile::open(&path).unwrap())
        };
        let kinds = [None, Some(0), Some(1), Some(2), Some(3), Some(4)].map(of);
        let (first, last, mean) = (Some(Pooling::First), Some(Pooling::Last), Some(Pooling::Mean));
        assert_eq!(kinds, [last, last, mean, first, last, None]);
    }

    #[test]
    fn the_pool_holds_at_least_one_context() {
        let env = vec![("HOME".into(), "/home/u".into())];
        let mut engine = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap().engine;
        engine.block_size = 16;
        assert_eq!(options(&engine, 100).unwrap().kv_tokens, 0);
        engine.kv_tokens = 97;
        assert_eq!(options(&engine, 100).unwrap().kv_tokens, 97);
        engine.kv_tokens = 90;
        assert!(options(&engine, 100).unwrap_err().to_string().contains("engine.kv_tokens is 90"));
    }
}
