//! A model as clients use it: a name and a chat template over a base model.

use std::any::Any;
use std::sync::Arc;

use super::adapters::{ActiveAdapter, BaseWeights, TextRun};
use super::name_defaults::NameDefaults;
use super::options::Options;
use super::pair_template::PairTemplate;
use super::pictures::EncoderThread;
use chat::Dialect;
use engine::{BackendKind, CacheType};
use grammar::Compiler;
use logits::{SamplingChoice, SamplingParams};
use model::ModelSpec;
use scheduler::{AdapterRequest, Handle, Pooling};
use template::ChatTemplate;
use tokenizer::Tokenizer;

/// Weights that are loaded once, their engine thread, and everything that depends on the weights alone.
pub struct BaseModel {
    pub spec: ModelSpec,
    /// The longest context served [tokens].
    pub context: usize,
    pub tokenizer: Arc<Tokenizer>,
    pub grammars: Compiler,
    pub handle: Handle,
    pub backend: BackendKind,
    /// How keys and values are stored.
    pub cache_type: CacheType,
    /// How a text becomes a vector. None if the model ranks texts and has no embeddings.
    pub pooling: Option<Pooling>,
    /// Whether the model is meant for embeddings: it is an encoder, or its file says how vectors are pooled.
    pub embeds: bool,
    /// How pairs of texts are scored. None if the model does not rank.
    pub ranking: Option<PairTemplate>,
    /// Identifies everything that answers depend on: this build, the model's contents, the backend and the type of the cache.
    pub fingerprint: String,
    /// The most sequences that run at once.
    pub max_running: usize,
    /// Encodes pictures. None if the model takes none.
    pub pictures: Option<EncoderThread>,
    /// What adapters are fitted to.
    pub weights: Arc<BaseWeights>,
    /// The most adapters that the engine holds at once. 0: it takes none.
    pub max_adapters: usize,
}

/// Held with a model while a request uses it. The registry sees by its leases which models are in use.
pub type Lease = Box<dyn Any + Send + Sync>;

/// A name and a chat template over a base model.
pub struct Model {
    pub id: String,
    pub base: Arc<BaseModel>,
    /// Sampling values for requests that do not choose.
    pub sampling: SamplingChoice,
    /// Whether the model only continues texts, since it was not tuned to answer. It refuses conversations.
    pub only_continues: bool,
    /// None if neither the file nor the configuration has a chat template.
    pub template: Option<Arc<ChatTemplate>>,
    /// How the model writes tool calls and reasoning. None without a template.
    pub dialect: Option<Arc<Dialect>>,
    /// The name's defaults for requests that do not choose.
    pub defaults: Arc<NameDefaults>,
    /// What the name or the request adds to the weights, in the order in which it is added.
    pub adapters: Arc<[ActiveAdapter]>,
    /// Dropped with the model, when the last part of a request drops it.
    pub lease: Option<Lease>,
}

impl Model {
    pub fn new(id: &str, base: Arc<BaseModel>, template: Option<ChatTemplate>) -> Self {
        let dialect = template.as_ref().map(|template| Dialect::of(template, &base.tokenizer));
        let only_continues = template.is_none() && !base.spec.arch.bidirectional;
        Self {
            id: id.to_owned(),
            base,
            sampling: SamplingChoice::default(),
            only_continues,
            template: template.map(Arc::new),
            dialect: dialect.map(Arc::new),
            defaults: Arc::default(),
            adapters: Arc::default(),
            lease: None,
        }
    }

    /// Returns the model for one request, which holds `lease` and the adapters until the request's last part is dropped.
    pub fn leased(&self, lease: Lease) -> Self {
        Self {
            id: self.id.clone(),
            base: self.base.clone(),
            template: self.template.clone(),
            dialect: self.dialect.clone(),
            defaults: self.defaults.clone(),
            adapters: self.adapters.clone(),
            lease: Some(lease),
            ..*self
        }
    }

    /// The model's picture encoder. `None`: it takes no pictures.
    pub fn pictures(&self) -> Option<&EncoderThread> {
        self.base.pictures.as_ref()
    }

    /// The adapters of a sequence with this prompt.
    pub(super) fn adapter_requests(&self, prompt: &[TextRun]) -> Vec<AdapterRequest> {
        self.adapters.iter().filter_map(|adapter| adapter.request(prompt)).collect()
    }

    /// The longest context of a request [tokens].
    pub fn context(&self) -> usize {
        self.defaults.context.unwrap_or(usize::MAX).min(self.base.context)
    }

    /// The sampling values of a request.
    pub fn sampling_of(&self, options: &Options) -> SamplingParams {
        match options.chosen {
            Some(chosen) => chosen.or(self.sampling).applied_to(options.sampling.clone()),
            None => options.sampling.clone(),
        }
    }
}
