//! A model that can be served: a base model, and the name and the chat template under which clients use it.

use std::any::Any;
use std::sync::Arc;

use super::name_defaults::NameDefaults;
use super::options::Options;
use super::pair_template::PairTemplate;
use chat::Dialect;
use engine::BackendKind;
use grammar::Compiler;
use logits::{SamplingChoice, SamplingParams};
use model::ModelSpec;
use scheduler::{Handle, Pooling};
use template::ChatTemplate;
use tokenizer::Tokenizer;

/// Weights that are loaded once, with the engine thread that runs them and everything that depends on the weights alone.
pub struct BaseModel {
    pub spec: ModelSpec,
    /// The longest context served, in tokens.
    pub context: usize,
    pub tokenizer: Arc<Tokenizer>,
    pub grammars: Compiler,
    pub handle: Handle,
    pub backend: BackendKind,
    /// How a text becomes a vector. None: the model ranks texts and has no embeddings.
    pub pooling: Option<Pooling>,
    /// The model was made for vectors: it is an encoder, or its file says how they are pooled.
    pub embeds: bool,
    /// How pairs of texts get scores. None: the model does not rank.
    pub ranking: Option<PairTemplate>,
    /// Identifies what answers depend on: this build, the model's contents and the backend.
    pub fingerprint: String,
    /// Sequences that run at once.
    pub max_running: usize,
}

/// Kept with a model for as long as a request uses it. Whoever hands models out sees by it which of them are in use.
pub type Lease = Box<dyn Any + Send + Sync>;

/// A model as clients know it: a name and a chat template over a base model.
pub struct Model {
    pub id: String,
    pub base: Arc<BaseModel>,
    /// What to sample with if a request does not say.
    pub sampling: SamplingChoice,
    /// The model continues texts: it was not tuned to answer.
    pub only_continues: bool,
    /// None: neither the file nor the configuration has a chat template.
    pub template: Option<Arc<ChatTemplate>>,
    /// How the model writes tool calls and reasoning. None without a template.
    pub dialect: Option<Arc<Dialect>>,
    /// What the name sets for requests that do not choose.
    pub defaults: Arc<NameDefaults>,
    /// Dropped with the model, which all parts of a request share.
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
            lease: None,
        }
    }

    /// The model for one request, which holds `lease` until its last part is dropped.
    pub fn leased(&self, lease: Lease) -> Self {
        Self {
            id: self.id.clone(),
            base: self.base.clone(),
            template: self.template.clone(),
            dialect: self.dialect.clone(),
            defaults: self.defaults.clone(),
            lease: Some(lease),
            ..*self
        }
    }

    /// What a request is sampled with.
    pub fn sampling_of(&self, options: &Options) -> SamplingParams {
        match options.chosen {
            Some(chosen) => chosen.or(self.sampling).applied_to(options.sampling.clone()),
            None => options.sampling.clone(),
        }
    }
}
