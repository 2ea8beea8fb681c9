//! Loads a model file into a base model with a running engine thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};

use super::adapters::BaseWeights;
use super::defaults::file_sampling;
use super::model::BaseModel;
use super::pair_template::PairTemplate;
use super::pictures::{EncoderPlace, EncoderThread};
use engine::{self, BackendKind, Device, Engine, EngineError, EngineOptions, Need};
use gguf::{Backing, GgufFile};
use grammar::Compiler;
use logits::SamplingChoice;
use metrics::ModelMetrics;
use model::{ModelSpec, Weights};
use outside::read_text;
use scheduler::{
    DeviceShare, DraftEngine, Engines, Handle, Pooling, ReplicaParts, SavedPrefixes, SchedulerOptions, SharedDevice, Watchdog,
};
use template::ChatTemplate;
use tiers::Store;
use tokenizer::Tokenizer;

/// The build's name in fingerprints: the variable `PENSTOCK_BUILD` at compile time (for example a commit), or else the version.
const BUILD: &str = match option_env!("PENSTOCK_BUILD") {
    Some(build) => build,
    None => env!("CARGO_PKG_VERSION"),
};

/// An open model file: its tensors are checked and its vocabulary is read, but no engine runs yet.
pub struct ModelFile {
    file: Arc<GgufFile>,
    backing: Backing,
    weights: Weights,
    tokenizer: Arc<Tokenizer>,
    ranking: Option<PairTemplate>,
}

/// Opens the engine of a draft model beside that of its target, which has these options. Called for each replica.
pub type OpenDraft = Box<dyn Fn(&dyn Engine, &EngineOptions) -> anyhow::Result<DraftEngine>>;

/// How to run a base model.
pub struct RunOptions {
    /// The model's name in metrics.
    pub name: String,
    /// `context` is at most [`ModelFile::context_length`].
    pub engine: EngineOptions,
    /// `max_batch_tokens` and `max_running` are replaced by the engine's limits.
    pub scheduler: SchedulerOptions,
    /// Watches the engine for faults that only a new process cures.
    pub watchdog: Watchdog,
    /// The file of the model's picture encoder. None: the model takes no pictures.
    pub mmproj: Option<PathBuf>,
    /// Opens the model that drafts this one's answers.
    pub draft: Option<OpenDraft>,
    /// Files for the prefix cache. None: it has none.
    pub disk: Option<DiskCache>,
    /// The model's weight when its device's time and memory are divided among models.
    pub share: f64,
    /// Time without requests after which the model gives back the memory of cached prompts.
    pub cache_idle: Duration,
}

/// A folder of files for prefix caches, which models share.
#[derive(Clone, Debug)]
pub struct DiskCache {
    pub folder: PathBuf,
    /// The most bytes of all files.
    pub bytes: u64,
}

impl DiskCache {
    /// The files of a model whose cache has this form.
    ///
    /// # Errors
    /// The cache cannot leave the engine, or the system has no thread.
    fn open(&self, file: &GgufFile, engine: &dyn Engine) -> anyhow::Result<SavedPrefixes> {
        let form = engine.portable_cache().with_context(|| {
            let backend = engine.info().backend;
            format!("cache.disk is for models on the CPU so far, and this one is on {backend}: set cache.disk to \"off\"")
        })?;
        let root = tiers::root(&file.whole_digest(), &form.form).context("cache.disk: the program cannot read its own file")?;
        let store = Store::of(&self.folder, self.bytes).context("cache.disk")?;
        tracing::info!("prompts are kept in {}, in at most {} MiB", self.folder.display().to_string().escape_debug(), self.bytes >> 20);
        Ok(SavedPrefixes { store, root })
    }
}

impl ModelFile {
    /// # Errors
    /// The file cannot be read, no engine can run its architecture or tensors, or its vocabulary does not fit its weights.
    pub fn open(path: &Path, backing: Backing) -> anyhow::Result<Self> {
        Ok(Self { backing, ..Self::of(Arc::new(GgufFile::open_with(path, backing)?))? })
    }

    /// Like [`ModelFile::open`], for a file that is open already.
    pub fn of(file: Arc<GgufFile>) -> anyhow::Result<Self> {
        // Weights are checked first: if a file holds no model, a missing vocabulary is not the error to report.
        let weights = Weights::load(file.clone())?;
        let named = || file.path().display().to_string();
        let tokenizer = Arc::new(Tokenizer::open(&file).with_context(named)?);
        let (tokens, rows, path) = (tokenizer.vocab_size(), weights.spec.vocab_size, named());
        ensure!(
            tokens <= rows,
            "{path}: the tokenizer has {tokens} tokens, but the model's embedding has {rows} rows: is it another model's?"
        );
        let ranking = (weights.spec.pooling == Pooling::Rank).then(|| PairTemplate::of(&file)).transpose().with_context(named)?;
        Ok(Self { file, backing: Backing::Mapped, weights, tokenizer, ranking })
    }

    pub(super) fn spec(&self) -> &ModelSpec {
        &self.weights.spec
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    pub(super) fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Whether the model is meant for embeddings: it is an encoder, or its file says how vectors are pooled.
    pub(super) fn embeds(&self) -> bool {
        self.spec().arch.bidirectional || self.file.arch_value("pooling_type").is_some()
    }

    /// Whether the file has a draft head (multi-token prediction), even one that does not fit.
    pub fn has_draft_head(&self) -> bool {
        !matches!(self.weights.spec.with_draft_head(&self.file), Ok(None))
    }

    /// Whether sequences have a recurrent state.
    pub fn is_recurrent(&self) -> bool {
        self.weights.spec.is_recurrent()
    }

    /// The longest context that the model was made for [tokens].
    pub fn context_length(&self) -> usize {
        self.weights.spec.context_length
    }

    /// The sampling values that the file recommends.
    pub fn sampling(&self) -> SamplingChoice {
        file_sampling(&self.file)
    }

    /// The context to serve if none is configured. See [`engine::longest_context`].
    pub fn auto_context(&self, device: &dyn Device, options: &EngineOptions, beside: u64) -> Result<usize, EngineError> {
        engine::longest_context(device, &self.weights, options, beside)
    }

    /// The memory that the model would need on a device.
    pub fn need(&self, device: &dyn Device, options: &EngineOptions) -> Result<Need, EngineError> {
        engine::need(device, &self.weights, options)
    }

    /// Compiles the chat template in the file `other`, or else the model file's own. None if there is neither.
    pub fn chat_template(&self, other: Option<&Path>) -> anyhow::Result<Option<ChatTemplate>> {
        chat_template(&self.file, &self.tokenizer, other)
    }

    /// Opens an engine over the weights on a device and starts its thread. See [`start_replicas`](Self::start_replicas).
    ///
    /// # Errors
    /// The engine or the picture encoder cannot be opened.
    pub fn start(self, device: Box<dyn Device>, options: RunOptions) -> anyhow::Result<BaseModel> {
        self.start_replicas(vec![Some(device)], options)
    }

    /// Opens an engine over the weights on each of the devices, and starts their threads once all are open. `None` stands for a device that
    /// is lost. Such a replica never serves.
    ///
    /// # Errors
    /// An engine or the picture encoder cannot be opened, or there is no device.
    pub fn start_replicas(self, devices: Vec<Option<Box<dyn Device>>>, mut options: RunOptions) -> anyhow::Result<BaseModel> {
        let digest = self.file.digest();
        let first = devices.iter().flatten().next().context("no device is left")?;
        let (kind, index) = first.place();
        let own_cache = first.cache_types().first().copied();
        let (spec, embeds, num_replicas) = (self.spec().clone(), self.embeds(), devices.len());
        let weights = Arc::new(BaseWeights::of(&self.weights, self.backing, kind == BackendKind::Cpu));
        let mut replicas = Vec::with_capacity(num_replicas);
        for (number, device) in devices.into_iter().enumerate() {
            options.engine.replica = (number, num_replicas);
            let opened = self.open_replica(kind, device, &options);
            replicas.push(if num_replicas > 1 { opened.with_context(|| of_replica(number, num_replicas))? } else { opened? });
        }
        let engines = || replicas.iter().filter_map(|parts| Some(&parts.engines.as_ref()?.engine));
        let engine = engines().next().context("no device is left")?;
        let (info, max_adapters) = (engine.info(), engine.max_adapters());
        // Devices of one kind may differ in their free memory.
        let max_running = engines().map(|engine| engine.max_slots()).min().unwrap_or_default();
        let max_batch_tokens = engines().map(|engine| engine.info().max_batch_tokens).min().unwrap_or_default();
        let cache_type = engine.kv_capacity().cache_type;
        let cache = if own_cache == Some(cache_type) { String::new() } else { format!("_{cache_type}") };
        let place = EncoderPlace { device: (kind, index), threads: options.engine.threads, max_batch_tokens };
        let pictures = options.mmproj.map(|path| EncoderThread::start(&path, &spec, &self.tokenizer, place, &options.name)).transpose()?;
        let scheduler = SchedulerOptions { max_batch_tokens, max_running, ..options.scheduler };
        let metrics = ModelMetrics::for_model(&options.name);
        Ok(BaseModel {
            context: options.engine.context,
            grammars: Compiler::new(self.tokenizer.clone(), spec.vocab_size),
            tokenizer: self.tokenizer,
            handle: Handle::spawn_replicas(&options.name, replicas, scheduler, metrics, Some(options.watchdog)),
            backend: info.backend,
            cache_type,
            pooling: Some(spec.pooling).filter(|&pooling| pooling != Pooling::Rank),
            embeds,
            ranking: self.ranking,
            fingerprint: format!("fp_{BUILD}_{digest}_{}{cache}", info.backend),
            max_running: max_running * num_replicas,
            pictures,
            weights,
            max_adapters,
            spec,
        })
    }

    /// Opens the engine of replica `options.engine.replica` on its device, or none if the device is lost.
    fn open_replica(&self, kind: BackendKind, device: Option<Box<dyn Device>>, options: &RunOptions) -> anyhow::Result<ReplicaParts> {
        let (number, _) = options.engine.replica;
        let index = replica_index(kind, options.engine.device, number);
        let shared = SharedDevice::of(kind, index);
        let place = if kind == BackendKind::Cpu { kind.name().to_owned() } else { format!("{}:{index}", kind.name()) };
        let share = Some(DeviceShare { device: shared.clone(), share: options.share, cache_idle: options.cache_idle });
        let Some(device) = device else { return Ok(ReplicaParts { engines: None, place, share, saved: None }) };
        let needed = engine::least_bytes(&*device, &self.weights, &options.engine)?;
        let room = shared.reserve_memory(needed, || Some(device.describe().ok()?.memory?.free));
        let engine = engine::open_on(device, self.weights.clone(), &options.engine)?;
        drop(room);
        let draft = options.draft.as_ref().map(|open| open(&*engine, &options.engine)).transpose()?;
        let saved = options.disk.as_ref().map(|disk| disk.open(&self.file, &*engine)).transpose()?;
        #[cfg(feature = "faults")]
        let engine = super::faults::plan(engine);
        Ok(ReplicaParts { engines: Some(Engines { engine, draft }), place, share, saved })
    }
}

/// The index of the device of a replica, the first of which is on `first`. Replicas on the CPU have parts of it, which take no turns.
pub fn replica_index(kind: BackendKind, first: u32, number: usize) -> u32 {
    let number = u32::try_from(number).unwrap_or(u32::MAX);
    if kind == BackendKind::Cpu { number } else { first.saturating_add(number) }
}

fn of_replica(number: usize, num_replicas: usize) -> String {
    format!("replica {number} of {num_replicas} (engine.replicas)")
}

/// Far above any real template. [bytes]
pub const MAX_TEMPLATE: u64 = 16 << 20;

/// See [`ModelFile::chat_template`].
pub fn chat_template(file: &GgufFile, tokenizer: &Tokenizer, other: Option<&Path>) -> anyhow::Result<Option<ChatTemplate>> {
    let source = match (other, file.get_str("tokenizer.chat_template")) {
        (Some(path), _) => read_text(path, MAX_TEMPLATE).with_context(|| path.display().to_string())?,
        (None, Some(text)) => text.to_owned(),
        (None, None) => return Ok(None),
    };
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    Ok(Some(ChatTemplate::new(&source, text(tokenizer.bos()), text(tokenizer.eos()))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use logits::SamplingParams;
    use model::ARCHS;
    use model::testing::TinyModel;
    use scheduler::{Event, NewSequence};

    fn options() -> RunOptions {
        RunOptions {
            name: "tiny".into(),
            engine: EngineOptions { threads: 1, context: 100, ..EngineOptions::default() },
            scheduler: SchedulerOptions {
                max_batch_tokens: 0,
                max_running: 0,
                max_waiting: 8,
                max_waiting_tokens: 0,
                prefix_cache: true,
                drafts: true,
            },
            watchdog: Watchdog { step_timeout: Duration::from_secs(60), on_fault: |_| {} },
            mmproj: None,
            draft: None,
            disk: None,
            share: 1.0,
            cache_idle: Duration::from_secs(300),
        }
    }

    /// If the file were mapped, truncating it would end the engine.
    #[test]
    fn a_copied_model_does_not_need_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tiny.gguf");
        TinyModel { tokenizer: true, ..TinyModel::new(&ARCHS[0]) }.build().write(&path).unwrap();
        let model =
            ModelFile::open(&path, Backing::Private).unwrap().start(engine::device(BackendKind::Cpu, 0).unwrap(), options()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
        let mut stream = model.handle.enqueue(NewSequence::new(vec![1, 2, 3], SamplingParams::greedy(), 4)).unwrap();
        let mut last = None;
        while let Some(event) = stream.blocking_next() {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::Finished { generated_tokens: 4, .. })), "{last:?}");
        assert_eq!((model.backend, model.max_running), (BackendKind::Cpu, 32), "the engine's own limits");
    }
}
