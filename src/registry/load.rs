//! Loads a base model with its variants from a model file.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use super::base::{Base, Loaded};
use super::drafting::{Drafting, draft_model};
use super::load_admission::LoadAdmission;
use super::mmproj::{FoundEncoder, PictureEncoder, mmproj};
use super::model_memory::{ModelMemory, measured};
use super::options::{default_sampling, engine_options, run_options};
use super::replica_devices::ReplicaDevices;
use config::{Config, ExampleRole, ModelEntry, StoredVariant};
use engine::{BackendKind, Device, EngineOptions, Need};
use gguf::{Backing, GgufFile};
use logits::SamplingChoice;
use serving::{
    BaseModel, ChatTemplate, Message, Model, ModelFile, NameDefaults, OpenDraft, Role, RunOptions, chat_template, file_sampling,
};

/// Loads a base model from its file and builds its variants.
pub fn load(config: &Config, base: &Base, path: &Path, admission: &LoadAdmission) -> anyhow::Result<Loaded> {
    let entry = &base.entry;
    let file = ModelFile::open(path, if config.engine.mmap { Backing::Mapped } else { Backing::Private })?;
    // Templates are compiled before the engine starts, so that a bad template is found without loading the weights.
    let parts = parts(base, &|variant| file.chat_template(variant.chat_template.as_deref()))?;
    let on_backend = || format!("engine.backend (--backend) is {}", config.engine.backend.name());
    let devices = ReplicaDevices::find(config, entry).with_context(on_backend)?;
    let first = devices.first()?;
    let drafting = Drafting::of(config, entry, &file, first);
    let options = |context: usize| {
        let engine = engine_options(&config.engine, entry);
        drafting.apply(EngineOptions { context, replica: (0, devices.count()), ..engine })
    };
    let draft = draft_model(config, entry, &file)?;
    let FoundEncoder { encoder, notes } = mmproj(config, entry, path, &file.row_shape())?;
    notes.iter().for_each(|note| tracing::warn!("{}: {}", entry.id, note.escape_debug()));
    if let Some(PictureEncoder { path, facts }) = &encoder {
        tracing::info!("{}: pictures are read by {} ({})", entry.id, path.display().to_string().escape_debug(), facts.family);
    }
    let of_encoder = encoder_bytes(encoder.as_ref(), first);
    // The encoder runs on the first device.
    let on = |device: &dyn Device| if device.place() == first.place() { of_encoder } else { 0 };
    let beside = |device: &dyn Device, context: usize| {
        let of_draft = draft.as_ref().map(|draft| draft.need(device, &options(context))).transpose().with_context(on_backend)?;
        anyhow::Ok(of_draft.map_or(0, |need| of_all(need, devices.num_per_device()).total()).saturating_add(on(device)))
    };
    let needs = |device: &dyn Device, context: usize| {
        let need = file.need(device, &options(context)).with_context(on_backend)?;
        let need = of_all(need, devices.num_per_device());
        anyhow::Ok(Need { weights: need.weights.saturating_add(beside(device, context)?), ..need })
    };
    // Makes room on each device. Returns what the model needs there.
    let make_room = |context: usize| {
        let needs = devices.places().map(|device| needs(device, context)).collect::<anyhow::Result<Vec<Need>>>()?;
        let total = needs.iter().map(Need::total).fold(0, u64::saturating_add);
        for (device, need) in devices.places().zip(&needs) {
            admission.make(need, total.saturating_sub(need.total()), &|| Some(device.describe().ok()?.memory?.free))?;
        }
        anyhow::Ok(needs)
    };
    // The length of an automatic context depends on the free memory, so room for a short context is made first.
    make_room(least_context(config, entry, &file))?;
    let contexts = devices.places().map(|device| context(config, entry, &file, (device, &options(0), &|context| beside(device, context))));
    let context = contexts.collect::<anyhow::Result<Vec<usize>>>()?.into_iter().min().context("no device is left")?;
    let needs = make_room(context)?;
    let mmproj = encoder.map(|encoder| encoder.path);
    let draft = draft.map(|draft| -> OpenDraft { Box::new(move |target, options| draft.open_beside(target, options)) });
    let options = RunOptions { mmproj, draft, share: entry.share.unwrap_or(1.0), ..run_options(config, entry, context)? };
    let of_file = file.sampling();
    let options = with_drafts(options, drafting);
    let places: Vec<_> = devices.places().map(Device::place).collect();
    let model = Arc::new(file.start_replicas(devices.into_all(), options).with_context(on_backend)?);
    let on_devices = needs.iter().zip(places).map(|(need, place)| (need.device.clone(), memory_on(need, place))).collect();
    let models = models_of(parts, base, &model, of_file);
    Ok(Loaded { context, on_devices, models })
}

/// The memory of replicas on one device, which share their weights there.
fn of_all(need: Need, count: usize) -> Need {
    let times = |bytes: u64| bytes.saturating_mul(count as u64);
    Need { cache: times(need.cache), scratch: times(need.scratch), ..need }
}

/// The memory that a picture encoder takes on a model's device. One that the device does not run is in the host's memory, which only a load
/// on the CPU counts.
fn encoder_bytes(encoder: Option<&PictureEncoder>, device: &dyn Device) -> u64 {
    encoder.map_or(0, |encoder| encoder.facts.bytes_on(device.place().0))
}

fn with_drafts(mut options: RunOptions, drafting: Drafting) -> RunOptions {
    options.scheduler.drafts = drafting.is_on;
    options.engine = drafting.apply(options.engine);
    options
}

/// The part of a model that does not depend on the weights.
struct NamePart<'a> {
    variant: &'a ModelEntry,
    template: NameTemplate,
    defaults: NameDefaults,
}

/// The chat template of a name.
enum NameTemplate {
    Compiled(Option<ChatTemplate>),
    /// That of an earlier part, by its index. A thousand adapters share one.
    Shared(usize),
}

impl NamePart<'_> {
    /// `earlier`: the models of the parts before this one.
    fn over(self, base: &Base, weights: &Arc<BaseModel>, of_file: SamplingChoice, earlier: &[Arc<Model>]) -> Arc<Model> {
        let Self { variant, template, defaults } = self;
        let sampling = match variant.of {
            Some(_) => variant.sampling.or(default_sampling(&base.entry, of_file)),
            None => default_sampling(variant, of_file),
        };
        let made = match template {
            NameTemplate::Compiled(template) => Model::new(&variant.id, weights.clone(), template),
            NameTemplate::Shared(index) => {
                let (template, dialect) = (earlier[index].template.clone(), earlier[index].dialect.clone());
                let plain = Model::new(&variant.id, weights.clone(), None);
                Model { only_continues: plain.only_continues && template.is_none(), template, dialect, ..plain }
            }
        };
        Arc::new(Model { sampling, only_continues: made.only_continues || variant.only_continues(), defaults: Arc::new(defaults), ..made })
    }
}

/// The models of some parts.
fn models_of(parts: Vec<NamePart>, base: &Base, weights: &Arc<BaseModel>, of_file: SamplingChoice) -> Vec<Arc<Model>> {
    let mut models = Vec::with_capacity(parts.len());
    for part in parts {
        models.push(part.over(base, weights, of_file, &models));
    }
    models
}

/// Compiles the templates of a base model's names and checks their defaults.
fn parts<'a>(base: &'a Base, compile: &dyn Fn(&ModelEntry) -> anyhow::Result<Option<ChatTemplate>>) -> anyhow::Result<Vec<NamePart<'a>>> {
    let part = |variant: &'a ModelEntry| {
        let hint = || format!("model `{}`: `chat_template` in its entry can name another one", variant.id);
        let earlier = base.variants.iter().position(|other| other.chat_template == variant.chat_template);
        let template = match earlier.filter(|index| !std::ptr::eq(&base.variants[*index], variant)) {
            Some(index) => NameTemplate::Shared(index),
            None => NameTemplate::Compiled(compile(variant).with_context(hint)?),
        };
        Ok(NamePart { variant, template, defaults: name_defaults(variant)? })
    };
    base.variants.iter().map(part).collect()
}

/// The models of `base` over the weights that `loaded` has under the names of `old`. Names that are the same keep their models.
pub fn models_over(base: &Base, old: &Base, loaded: &Loaded, path: &Path) -> anyhow::Result<Vec<Arc<Model>>> {
    let first = loaded.models.first().context("nothing is loaded")?;
    let file = GgufFile::open(path)?;
    let compile = |variant: &ModelEntry| chat_template(&file, &first.base.tokenizer, variant.chat_template.as_deref());
    let of_file = file_sampling(&file);
    let known = |variant: &ModelEntry| old.variants.iter().position(|other| other == variant).and_then(|at| loaded.models.get(at));
    let only_new = Base::new(
        base.entry.clone(),
        base.variants.iter().filter(|variant| known(variant).is_none()).cloned().collect(),
        false,
        0,
        Arc::default(),
    );
    let mut made = models_of(parts(&only_new, &compile)?, base, &first.base, of_file).into_iter();
    base.variants.iter().map(|variant| known(variant).cloned().or_else(|| made.next()).context("a name has no model")).collect()
}

/// The memory that a model takes on a device after its load.
fn memory_on(need: &Need, (kind, index): (BackendKind, u32)) -> ModelMemory {
    let now = || engine::device(kind, index).ok()?.describe().ok()?.memory;
    match kind {
        BackendKind::Cpu => ModelMemory::from(need),
        BackendKind::Cuda => measured(need, now()),
    }
}

fn name_defaults(entry: &ModelEntry) -> anyhow::Result<NameDefaults> {
    let made = entry.made.as_deref();
    let defaults = NameDefaults {
        context: made.and_then(StoredVariant::context),
        max_tokens: entry.max_tokens,
        system: entry.system.clone(),
        effort: entry.reasoning_effort.clone(),
        variables: entry.chat_template_kwargs.clone().into_iter().collect(),
        messages: made.map(examples).unwrap_or_default(),
        stop: made.map(StoredVariant::stop).unwrap_or_default(),
    };
    defaults.check().map_err(|fault| anyhow::anyhow!("model `{}`: {fault}", entry.id))?;
    Ok(defaults)
}

/// The messages that begin every conversation with a made model.
fn examples(made: &StoredVariant) -> Vec<Message> {
    let role = |role: ExampleRole| match role {
        ExampleRole::System => Role::System,
        ExampleRole::User => Role::User,
        ExampleRole::Assistant => Role::Assistant,
    };
    made.messages.iter().map(|message| Message::of_text(role(message.role), &*message.content)).collect()
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
/// `beside`: the memory that the picture encoder and the draft model take on the device, by the context [bytes].
fn context(
    config: &Config,
    entry: &ModelEntry,
    file: &ModelFile,
    (device, options, beside): (&dyn Device, &EngineOptions, &dyn Fn(usize) -> anyhow::Result<u64>),
) -> anyhow::Result<usize> {
    let (id, most) = (&entry.id, file.context_length());
    match entry.context.unwrap_or(config.engine.context) {
        config::Context::Tokens(tokens) if tokens > most => {
            tracing::warn!("{id}: a context of {tokens} tokens was asked for, but the model was made for {most}: it is served with {most}");
            Ok(most)
        }
        config::Context::Tokens(tokens) => Ok(tokens),
        config::Context::Auto => {
            // The longer the context, the more the draft model takes, so the second length is no longer than the first.
            let longest = file.auto_context(device, options, beside(least_context(config, entry, file))?)?;
            let context = file.auto_context(device, options, beside(longest)?)?;
            if context < most {
                tracing::info!("{id}: the context is {context} of the {most} tokens that the model was made for: set --context for more");
            }
            Ok(context)
        }
    }
}
