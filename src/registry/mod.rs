//! Models by name: the catalogue, where they come from, what is on disk, what is loaded.

use std::path::Path;
use std::sync::Arc;

use crate::config::{Config, ModelEntry};
use crate::model::ModelSpec;
use crate::scheduler::Handle;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// A model that is open and has an engine thread.
pub struct LoadedModel {
    pub id: String,
    /// Unix seconds, for `created`.
    pub created: u64,
    pub spec: ModelSpec,
    /// The longest context served, in tokens.
    pub context: usize,
    pub tokenizer: Arc<Tokenizer>,
    /// None: the file has no chat template.
    pub template: Option<ChatTemplate>,
    pub handle: Handle,
    /// "cpu" or "cuda"
    pub backend: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("the model `{0}` does not exist")]
    NotFound(String),
    #[error("the model `{0}` is still loading")]
    Loading(String),
    #[error("the model `{id}` could not be loaded: {cause}")]
    LoadFailed { id: String, cause: String },
}

/// What `/v1/models` lists.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    pub id: String,
    pub created: u64,
    pub context: Option<usize>,
    pub loaded: bool,
}

/// The models that this process serves; shared by every HTTP worker.
pub struct Registry {}

impl Registry {
    /// `serve` names what to serve: catalogue ids or aliases, or paths of GGUF files. Nothing is loaded yet.
    pub fn new(config: &Config, serve: &[String]) -> anyhow::Result<Arc<Self>> {
        let _ = (config, serve);
        todo!()
    }

    /// Fetches what is missing (progress on stderr) and loads the eager models; blocking.
    pub fn load_eager(&self) -> anyhow::Result<()> {
        todo!()
    }

    pub fn list(&self) -> Vec<ModelInfo> {
        todo!()
    }

    /// A loaded model by id or alias; a lazy one is loaded first (blocking: call it off the event loop).
    pub fn get(&self, id: &str) -> Result<Arc<LoadedModel>, RegistryError> {
        let _ = id;
        todo!()
    }

    /// A model that is loaded already: the fast path on the event loop.
    pub fn get_loaded(&self, id: &str) -> Option<Arc<LoadedModel>> {
        let _ = id;
        todo!()
    }

    /// Is every eager model loaded and alive?
    pub fn is_ready(&self) -> bool {
        todo!()
    }

    /// Stops every engine thread.
    pub fn stop(&self) {
        todo!()
    }
}

/// Opens a model file and starts its engine thread.
pub fn load_model(config: &Config, entry: &ModelEntry, path: &Path) -> anyhow::Result<LoadedModel> {
    let _ = (config, entry, path);
    todo!()
}
