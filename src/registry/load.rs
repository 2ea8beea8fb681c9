//! From a model file to a running engine thread.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};

use super::{LoadedModel, modified, unix_seconds};
use crate::config::{Backend, Config, Engine as EngineConfig, ModelEntry};
use crate::engine::cpu::{self, CpuOptions};
use crate::gguf::{Backing, GgufFile, Value};
use crate::metrics::ModelMetrics;
use crate::model::Weights;
use crate::scheduler::{Handle, SchedulerOptions};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Opens a model file and starts its engine thread.
pub fn load_model(config: &Config, entry: &ModelEntry, path: &Path) -> anyhow::Result<LoadedModel> {
    let engine = &config.engine;
    let backend = choose_backend(engine.backend)?;
    let file = Arc::new(GgufFile::open_with(path, if engine.mmap { Backing::Mapped } else { Backing::Private })?);
    let tokenizer = Arc::new(Tokenizer::from_gguf(&file)?);
    let template = chat_template(entry, &file, &tokenizer)?;
    let weights = Weights::load(file)?;
    let spec = weights.spec.clone();
    let context = entry.context.unwrap_or(engine.context).min(spec.context_length);
    let options = CpuOptions {
        threads: engine.threads,
        num_blocks: num_blocks(engine, context)?,
        block_size: engine.block_size,
        max_slots: engine.max_running,
        max_batch_tokens: engine.max_batch_tokens,
    };
    let opened = cpu::open(weights, &options)?;
    let options = SchedulerOptions {
        max_batch_tokens: engine.max_batch_tokens,
        max_running: engine.max_running,
        max_waiting: config.limits.max_queue,
        prefix_cache: engine.prefix_cache,
    };
    let handle = Handle::spawn(opened, options, ModelMetrics::for_model(&entry.id));
    let created = modified(path).unwrap_or_else(|| unix_seconds(SystemTime::now()));
    Ok(LoadedModel { id: entry.id.clone(), created, spec, context, tokenizer, template, handle, backend })
}

fn choose_backend(wanted: Backend) -> anyhow::Result<&'static str> {
    match wanted {
        Backend::Auto | Backend::Cpu => Ok("cpu"),
        Backend::Cuda => bail!("this build has no CUDA: set engine.backend (--backend) to cpu or auto"),
    }
}

/// KV blocks of the pool: what `kv_tokens` asks for, or one context.
fn num_blocks(engine: &EngineConfig, context: usize) -> anyhow::Result<usize> {
    let tokens = if engine.kv_tokens == 0 { context } else { engine.kv_tokens };
    let (blocks, kv) = (tokens.div_ceil(engine.block_size), engine.kv_tokens);
    ensure!(blocks * engine.block_size >= context, "engine.kv_tokens is {kv}, which does not hold one context of {context} tokens");
    Ok(blocks)
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
        let (params, stop_ids) = (SamplingParams::greedy(), Vec::new());
        let mut stream =
            model.handle.enqueue(NewSequence { prompt: vec![1, 2, 3], params, max_tokens: 4, stop_ids, cache_salt: 0 }).unwrap();
        let mut last = None;
        while let Some(event) = stream.blocking_next() {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::Finished { generated_tokens: 4, .. })), "{last:?}");
    }

    #[test]
    fn the_pool_holds_one_context_or_what_is_asked() {
        let env = vec![("HOME".into(), "/home/u".into())];
        let mut engine = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap().engine;
        engine.block_size = 16;
        assert_eq!(num_blocks(&engine, 100).unwrap(), 7);
        engine.kv_tokens = 1000;
        assert_eq!(num_blocks(&engine, 100).unwrap(), 63);
        engine.kv_tokens = 90;
        assert!(num_blocks(&engine, 100).unwrap_err().to_string().contains("engine.kv_tokens is 90"));
        assert!(choose_backend(Backend::Cuda).unwrap_err().to_string().contains("no CUDA"));
    }
}
