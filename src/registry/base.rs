//! What is served: base models, the variants that stand on them, and whether they are loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;

use super::load_once::LoadOnce;
use super::options::{backend, default_sampling, engine_options, run_options};
use config::{Config, ModelEntry};
use engine::Device;
use gguf::Backing;
use serving::{Model, ModelFile, RunOptions};

/// A name that clients use, and what it changes about its base model.
pub struct Variant {
    pub id: String,
    pub aliases: Vec<String>,
    /// A Jinja chat template in place of the file's own.
    pub chat_template: Option<PathBuf>,
}

/// Weights that are loaded once for all their variants.
pub struct Base {
    /// Where the weights come from, and with which context they are served.
    pub entry: ModelEntry,
    /// Loaded at start rather than at the first request.
    pub eager: bool,
    pub variants: Vec<Variant>,
    pub loaded: LoadOnce<Loaded>,
}

/// A loaded base model, as the models that stand on it.
pub struct Loaded {
    /// When the model's file was written: Unix seconds.
    pub created: u64,
    /// The longest context served, in tokens.
    pub context: usize,
    /// In the order of [`Base::variants`].
    pub models: Vec<Arc<Model>>,
}

impl Variant {
    /// The id, once for itself and once for each alias.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        std::iter::once(&self.id).chain(&self.aliases).map(|name| (self.id.as_str(), name.as_str()))
    }

    fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

impl Base {
    /// A base model of an entry of its own, with the entry's name as its only variant.
    pub fn new(entry: ModelEntry, eager: bool) -> Self {
        let variant = Variant { id: entry.id.clone(), aliases: entry.aliases.clone(), chat_template: entry.chat_template.clone() };
        Self { entry, eager, variants: vec![variant], loaded: LoadOnce::new(Loaded::is_alive, Loaded::stop) }
    }

    /// The index of the variant that answers to `name`.
    pub fn variant(&self, name: &str) -> Option<usize> {
        self.variants.iter().position(|variant| variant.answers_to(name))
    }
}

impl Loaded {
    fn is_alive(&self) -> bool {
        self.models.iter().all(|model| model.base.handle.is_alive())
    }

    /// Whether the engine's device is lost: only a new process can use it again.
    pub fn is_lost(&self) -> bool {
        self.models.iter().any(|model| model.base.handle.is_lost())
    }

    fn stop(&self) {
        self.models.iter().for_each(|model| model.base.handle.stop());
    }
}

/// Loads a base model from its file and puts its variants on it.
pub fn load(config: &Config, base: &Base, path: &Path) -> anyhow::Result<Loaded> {
    let file = ModelFile::open(path, if config.engine.mmap { Backing::Mapped } else { Backing::Private })?;
    // Templates are compiled before the engine starts: a bad template is found without loading the weights.
    let template = |variant: &Variant| {
        let template = file.chat_template(variant.chat_template.as_deref());
        template.with_context(|| format!("model `{}`: `chat_template` in its entry can name another one", variant.id))
    };
    let templates = base.variants.iter().map(template).collect::<anyhow::Result<Vec<_>>>()?;
    let on_backend = || format!("engine.backend (--backend) is {}", config.engine.backend.name());
    let device = engine::find_device(backend(config.engine.backend), config.engine.device).with_context(on_backend)?;
    let context = context(config, &base.entry, &file, &*device)?;
    let options = RunOptions { share: base.entry.share.unwrap_or(1.0), ..run_options(config, &base.entry.id, context)? };
    let sampling = default_sampling(&base.entry, file.sampling());
    let model = file.start(device, options).with_context(on_backend)?;
    let model = Arc::new(model);
    let of = |(variant, template): (&Variant, _)| {
        let made = Model::new(&variant.id, model.clone(), template);
        Arc::new(Model { sampling, only_continues: made.only_continues || base.entry.base, ..made })
    };
    let models = base.variants.iter().zip(templates).map(of);
    let created = modified(path).unwrap_or_else(|| unix_seconds(SystemTime::now()));
    Ok(Loaded { created, context, models: models.collect() })
}

/// The longest context served. Whoever asks for more than the model was made for is told.
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
                tracing::info!("{id}: the context is {context} tokens of the {most} that the model was made for: --context asks for more");
            }
            Ok(context)
        }
    }
}

pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// When a file was last written: Unix seconds.
pub fn modified(path: &Path) -> Option<u64> {
    Some(unix_seconds(path.metadata().ok()?.modified().ok()?))
}
