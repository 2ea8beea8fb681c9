//! The requests and responses of the operators' endpoints for models.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use http::error::ApiError;
use http::fields::Fields;
use registry::{ModelMemory, ModelState, ModelStatus};
use serving::ReplicaStatus;

/// A model, as operators see it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminModel {
    #[schema(example = "smollm2:135m")]
    pub id: String,
    pub aliases: Vec<String>,
    /// The model that owns the weights. Names with the same weights and options share one load.
    pub root: String,
    #[schema(required = true)]
    pub parent: Option<String>,
    /// `unloaded`, `loading`, `loaded`, `downloading` or `failed`
    #[schema(example = "loaded")]
    pub state: String,
    #[schema(required = true)]
    pub bytes: Option<AdminBytes>,
    #[schema(required = true)]
    pub download: Option<AdminDownload>,
    /// The context length in tokens. Null until the model is loaded, unless its entry sets one.
    #[schema(required = true)]
    pub context: Option<usize>,
    /// The loads of the model that share its requests. Empty until the model is loaded.
    pub replicas: Vec<AdminReplica>,
    /// `cpu` or `cuda`
    #[schema(required = true)]
    pub backend: Option<String>,
    /// How the KV cache stores keys and values: `f32`, `f16` or `q8`. Null until the model is loaded.
    #[schema(required = true)]
    pub cache_type: Option<String>,
    /// Requests that use the load.
    pub requests_running: usize,
    /// Requests that wait for the load.
    pub requests_waiting: usize,
    /// Seconds since the load began.
    #[schema(required = true)]
    pub loading_seconds: Option<u64>,
    /// The time of the last request that used the model [Unix seconds].
    #[schema(required = true)]
    pub last_use: Option<u64>,
    pub pinned: bool,
}

/// The device memory that a load takes [bytes].
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminBytes {
    pub weights: u64,
    /// The KV cache and recurrent states.
    pub cache: u64,
    pub scratch: u64,
    pub total: u64,
}

/// A replica of a loaded model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminReplica {
    /// The replica's number, starting at 0.
    pub replica: usize,
    #[schema(example = "cuda:1")]
    pub device: String,
    /// Whether it serves. False once it was lost.
    pub serves: bool,
    /// Sequences that wait or run there.
    pub sequences: usize,
}

/// The progress of a download [bytes].
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminDownload {
    pub completed: u64,
    /// Null while the size is unknown.
    #[schema(required = true)]
    pub total: Option<u64>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminModelList {
    #[schema(example = "list")]
    pub object: String,
    pub data: Vec<AdminModel>,
}

/// Names the model to load.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m"}))]
pub struct LoadRequest {
    /// An id or an alias
    pub model: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "force": false}))]
pub struct UnloadRequest {
    /// An id or an alias
    pub model: String,
    /// Unload the model even if requests use it. They end with an error
    pub force: Option<bool>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m"}))]
pub struct PullRequest {
    /// A name in the catalogue, `hf:owner/repo/file.gguf`, or `hf:owner/repo:TYPE`
    pub model: String,
    /// Respond with a stream of `PullProgress` events
    pub stream: Option<bool>,
}

/// The progress of a download.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({"model": "smollm2:135m", "status": "success", "completed": null, "total": null}))]
pub struct PullProgress {
    pub model: String,
    /// `downloading` or `success`
    pub status: String,
    #[schema(required = true)]
    pub completed: Option<u64>,
    #[schema(required = true)]
    pub total: Option<u64>,
}

/// An event of a model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AdminEvent {
    /// The model. Null if the list of models has changed.
    #[schema(required = true)]
    pub model: Option<String>,
    /// `state`, `progress` or `list`
    pub event: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// The model that a request names, and the request's switch if it has one.
pub struct Named {
    pub model: String,
    pub switch: bool,
}

http::field_schemas! { &[];
    LOADS: LoadRequest;
    UNLOADS: UnloadRequest;
    PULLS: PullRequest;
}

/// Reads a body with a model and a switch named `switch`.
pub fn named(body: &Value, switch: Option<&str>) -> Result<Named, ApiError> {
    let fields = Fields::root(body)?;
    let model = fields.required("model", fields.string("model")?)?.to_owned();
    let switch = switch.map(|name| fields.bool(name)).transpose()?.flatten().unwrap_or(false);
    Ok(Named { model, switch })
}

impl From<ModelStatus> for AdminModel {
    fn from(status: ModelStatus) -> Self {
        Self {
            id: status.id,
            aliases: status.aliases,
            root: status.root,
            parent: status.parent,
            state: status.state.name().into(),
            bytes: status.bytes.map(AdminBytes::from),
            download: status.download.map(|(completed, total)| AdminDownload { completed, total }),
            context: status.context,
            replicas: status.replicas.into_iter().map(AdminReplica::from).collect(),
            backend: status.backend.map(str::to_owned),
            cache_type: status.cache_type.map(str::to_owned),
            requests_running: status.num_requests,
            requests_waiting: status.num_waiting,
            loading_seconds: status.loading_seconds,
            last_use: status.last_use,
            pinned: status.pinned,
        }
    }
}

impl From<ReplicaStatus> for AdminReplica {
    fn from(status: ReplicaStatus) -> Self {
        Self { replica: status.number, device: status.place, serves: status.serves, sequences: status.num_active }
    }
}

impl From<ModelMemory> for AdminBytes {
    fn from(bytes: ModelMemory) -> Self {
        Self { weights: bytes.weights, cache: bytes.cache, scratch: bytes.scratch, total: bytes.total() }
    }
}

/// Returns the state as llama.cpp's router words it, and whether the last load failed.
pub fn router_state(state: ModelState) -> (&'static str, bool) {
    match state {
        ModelState::Failed => ("unloaded", true),
        other => (other.name(), false),
    }
}
