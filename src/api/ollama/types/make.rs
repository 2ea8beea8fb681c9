//! `/api/create` and `/api/copy`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaCreateRequest, example = json!({"model": "mario", "from": "smollm2:135m",
    "system": "You are Mario.", "stream": false}))]
pub struct CreateRequest {
    /// The name of the new model, with or without `:latest`. A model that was made before under this name is replaced. Older clients call
    /// it `name`.
    pub model: String,
    /// The model to start from. One of the catalogue that is not on disk is fetched.
    pub from: Option<String>,
    /// In place of `from`: the GGUF file that was uploaded to `/api/blobs`, as its name and its digest. A split model has several.
    #[schema(example = json!({"model.gguf": "sha256:0000000000000000000000000000000000000000000000000000000000000000"}))]
    pub files: Option<BTreeMap<String, String>>,
    /// The adapter of the model, uploaded to `/api/blobs`: a GGUF file, or `adapter_config.json` and `adapter_model.safetensors`.
    #[schema(example = json!({"adapter.gguf": "sha256:0000000000000000000000000000000000000000000000000000000000000000"}))]
    pub adapters: Option<BTreeMap<String, String>>,
    /// The chat template: in Jinja, or one of Go's, which is translated.
    pub template: Option<String>,
    /// The system message for conversations without one.
    pub system: Option<String>,
    /// One text, or several.
    pub license: Option<OneOrMany>,
    /// Options for requests that do not choose: `temperature`, `stop` and so on, under the names of `options`.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// The beginning of every conversation.
    pub messages: Option<Vec<ExampleMessage>>,
    /// The file type to convert the weights to, such as `q4_K_M`.
    pub quantize: Option<String>,
    #[schema(default = true)]
    pub stream: Option<bool>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = OllamaLicense)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = OllamaExampleMessage)]
pub struct ExampleMessage {
    /// `system`, `user` or `assistant`
    #[schema(example = "user")]
    pub role: String,
    pub content: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = OllamaCopyRequest, example = json!({"source": "smollm2:135m", "destination": "smollm2-backup"}))]
pub struct CopyRequest {
    /// An id or an alias, with or without `:latest`.
    pub source: String,
    /// The second name.
    pub destination: String,
}
