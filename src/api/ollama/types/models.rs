//! Lists and descriptions of models, and the progress of downloads.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::make::ExampleMessage;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaVersion, example = json!({"version": "0.13.0"}))]
pub struct Version {
    /// The version of Ollama whose API this is.
    pub version: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaDetails)]
pub struct Details {
    /// The model that this one is a variant of. Empty if there is none.
    pub parent_model: String,
    #[schema(example = "gguf")]
    pub format: String,
    /// The architecture.
    #[schema(example = "llama")]
    pub family: String,
    pub families: Vec<String>,
    #[schema(example = "134.52M")]
    pub parameter_size: String,
    #[schema(example = "Q4_1")]
    pub quantization_level: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaTag)]
pub struct Tag {
    pub name: String,
    pub model: String,
    pub modified_at: String,
    /// The size of the model's files [bytes].
    pub size: u64,
    /// The sha256 of a model that the server fetched. For other models, a short digest of the file's beginning.
    pub digest: String,
    pub details: Details,
    /// An extension: the name of the file or folder with the model's adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaTags)]
pub struct Tags {
    pub models: Vec<Tag>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaLoaded)]
pub struct Loaded {
    pub name: String,
    pub model: String,
    /// The memory that the model takes for weights, cache and scratch [bytes].
    pub size: u64,
    pub digest: String,
    pub details: Details,
    /// When the model is unloaded if it is not used before. The end of the year 9999 means never.
    pub expires_at: String,
    /// The part of `size` that is in a GPU's memory.
    pub size_vram: u64,
    /// The context that the model is served with [tokens].
    pub context_length: usize,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaRunning)]
pub struct Running {
    pub models: Vec<Loaded>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaShowRequest, example = json!({"model": "smollm2:135m"}))]
pub struct ShowRequest {
    /// An id or an alias, with or without `:latest`. Older clients call it `name`.
    pub model: String,
    /// Also return the metadata's arrays and the tensors.
    #[schema(default = false)]
    pub verbose: Option<bool>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaShow)]
pub struct Show {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// The content of a Modelfile. The template is left out if it is the one of the model's file.
    pub modelfile: String,
    /// The default sampling settings: one name and value per line.
    pub parameters: String,
    /// The chat template, as it was given to `/api/create` or in Jinja. Empty if the model continues texts.
    pub template: String,
    /// The system message for conversations without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The beginning of every conversation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub messages: Vec<ExampleMessage>,
    pub details: Details,
    /// An extension: the name of the file or folder with the model's adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// The metadata of the model's file. Arrays are null unless `verbose` is set.
    #[schema(value_type = Object)]
    pub model_info: Map<String, Value>,
    /// The tensors of the model's file. Only with `verbose`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<Vec<Tensor>>,
    /// The model's abilities: `completion`, `tools`, `thinking`, `embedding`, `insert` or `vision`.
    pub capabilities: Vec<String>,
    pub modified_at: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaTensor)]
pub struct Tensor {
    #[schema(example = "blk.0.attn_q.weight")]
    pub name: String,
    /// The storage type.
    #[serde(rename = "type")]
    #[schema(example = "Q4_K")]
    pub kind: String,
    /// The dimensions, the contiguous one first.
    pub shape: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaPullRequest, example = json!({"model": "smollm2:135m", "stream": false}))]
pub struct PullRequest {
    /// A name in the catalogue, or `hf.co/owner/repo:TYPE`. Older clients call it `name`.
    pub model: String,
    #[schema(default = true)]
    pub stream: Option<bool>,
}

/// The progress of a download.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[schema(as = OllamaProgress, example = json!({"status": "success"}))]
pub struct Progress {
    /// `pulling manifest`, `pulling NAME` or `success`
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The size [bytes], once known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}
