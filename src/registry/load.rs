//! Loads a base model with its variants from a model file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use super::base::{Base, Loaded};
use super::load_admission::LoadAdmission;
use super::model_memory::{ModelMemory, measured};
use super::options::{backend, default_sampling, engine_options, run_options};
use config::{Config, ModelEntry};
use engine::{BackendKind, Device, DeviceMemory, EngineOptions};
use gguf::Backing;
use serving::{Model, ModelFile, NameDefaults, RunOptions};

/// Loads a base model from its file and builds its variants.
pub fn load(config: &Config, base: &Base, path: &Path, admission: &LoadAdmission) -> anyhow::Result<Loaded> {
    let entry = &base.entry;
    let file = ModelFile::open(path, if config.engine.mmap { Backing::Mapped } else { Backing::Private })?;
    // Templates are compiled before the engine starts, so that a bad template is found without loading the weights.
    let template = |variant: &ModelEntry| {
        let template = file.chat_template(variant.chat_template.as_deref());
        template.with_context(|| format!("model `{}`: `chat_template` in its entry can name another one", variant.id))
    };
    let templates = base.variants.iter().map(template).collect::<anyhow::Result<Vec<_>>>()?;
    let defaults = base.variants.iter().map(name_defaults).collect::<anyhow::Result<Vec<_>>>()?;
    let on_backend = || format!("engine.backend (--backend) is {}", config.engine.backend.name());
    let device = engine::find_device(backend(config.engine.backend), config.engine.device).with_context(on_backend)?;
    let needs = |context: usize| {
        let options = EngineOptions { context, ..engine_options(&config.engine) };
        file.need(&*device, &options).with_context(on_backend)
    };
    // The length of an automatic context depends on the free memory, so room for a short context is made first.
    let free = || Some(device.describe().ok()?.memory?.free);
    admission.make(&needs(least_context(config, entry, &file))?, &free)?;
    let context = context(config, entry, &file, &*device)?;
    let need = needs(context)?;
    admission.make(&need, &free)?;
    let options = RunOptions { share: entry.share.unwrap_or(1.0), ..run_options(config, &entry.id, context)? };
    let of_file = file.sampling();
    let model = Arc::new(file.start(device, options).with_context(on_backend)?);
    let bytes = match model.backend {
        BackendKind::Cpu => ModelMemory::from(&need),
        BackendKind::Cuda => measured(&need, device_memory(config)),
    };
    let of = |((variant, template), defaults): ((&ModelEntry, _), _)| {
        let sampling = match variant.of {
            Some(_) => variant.sampling.or(default_sampling(entry, of_file)),
            None => default_sampling(variant, of_file),
        };
        let made = Model::new(&variant.id, model.clone(), template);
        Arc::new(Model { sampling, only_continues: made.only_continues || variant.base, defaults: Arc::new(defaults), ..made })
    };
    let models = base.variants.iter().zip(templates).zip(defaults).map(of);
    Ok(Loaded { context, bytes, models: models.collect() })
}

/// The current memory of the device that models are loaded on.
fn device_memory(config: &Config) -> Option<DeviceMemory> {
    engine::find_device(backend(config.engine.backend), config.engine.device).ok()?.describe().ok()?.memory
}

fn name_defaults(entry: &ModelEntry) -> anyhow::Result<NameDefaults> {
    let defaults = NameDefaults {
        max_tokens: entry.max_tokens,
        system: entry.system.clone(),
        effort: entry.reasoning_effort.clone(),
        variables: entry.chat_template_kwargs.clone().into_iter().collect(),
    };
    defaults.check().map_err(|fault| anyhow::anyhow!("model `{}`: {fault}", entry.id))?;
    Ok(defaults)
}

/// The context that the model gets if memory is short [tokens].
fn least_context(config: &Config, entry: &ModelEntry, file: &ModelFile) -> usize {
    const LEAST: usize = 4096;
    match entry.context.unwrap_or(config.engine.context) {
        config::Context::Tokens(tokens) => tokens.min(file.context_length()),
        config::Context::Auto => LEAST.min(file.context_length()),
    }
}

/// The longest context served. A setting beyond what the model was made for is reduced, with a warning.
fn context(config: &Config, entry: &ModelEntry, file: &ModelFile, device: &dyn Device) -> anyhow::Result<usize> {
    let (id, most) = (&entry.id, file.context_length());
    match entry.context.unwrap_or(config.engine.context) {
        config::Context::Tokens(tokens) if tokens > most => {
            tracing::warn!("{id}: a context of {tokens} tokens was asked for, but the model was made for {most}: it is served with {most}");
            Ok(most)
        }
        config::Context::Tokens(tokens) => Ok(tokens),
        config::Context::Auto => {
            let context = file.auto_context(device, &engine_options(&config.engine))?;
            if context < most {
                tracing::info!("{id}: the context is {context} of the {most} tokens that the model was made for: set --context for more");
            }
            Ok(context)
        }
    }
}
