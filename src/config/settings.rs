//! The settings and their meanings.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::adapters::AdapterEntry;
use super::auth::Auth;
use super::cache::Cache;
use super::cache_type::CacheType;
use super::context::Context;
use super::drafts::Drafts;
use super::entry::ModelEntry;
use super::log::LogFormat;
use super::mmproj::Mmproj;
use super::resident::Resident;
use super::storage::Storage;
use super::traces::Traces;

/// The whole configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub auth: Auth,
    pub engine: Engine,
    pub cache: Cache,
    pub limits: Limits,
    pub storage: Storage,
    pub traces: Traces,
    /// The catalogue: every model that the server knows by name.
    pub models: Vec<ModelEntry>,
    /// Names that add an adapter to another model.
    pub adapters: Vec<AdapterEntry>,
    /// The flag `--mmproj`: the picture encoder of the file that `--model` names.
    #[serde(skip)]
    pub mmproj: Option<Mmproj>,
    /// The flag `--draft`: the draft model of the model that `--model` names.
    #[serde(skip)]
    pub draft: Option<String>,
}

/// The section `[server]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub host: IpAddr,
    pub port: u16,
    /// Further host names that requests may use, besides those of this machine. Empty: none on a loopback address, any on other addresses.
    pub allowed_hosts: Vec<String>,
    /// The origins whose pages may use the server from a browser.
    pub cors_origins: Vec<String>,
    /// The hosts from which pictures are fetched that requests name by URL. Empty: none.
    pub picture_hosts: Vec<String>,
    /// The certificate with its chain, and the private key, as PEM files. "": the server speaks plain HTTP.
    pub tls_cert: PathBuf,
    pub tls_key: PathBuf,
    /// Number of HTTP worker threads. 0 in a file means one per core, and is replaced by that number.
    pub workers: usize,
    /// The directory for downloaded models. "" in a file means the user's data directory and is replaced by its path.
    pub models_dir: PathBuf,
    /// Time for running requests to finish after SIGTERM [s].
    pub drain_seconds: u64,
    /// Time without output after which a stream gets a `: ping` comment [s].
    pub keep_alive_seconds: u64,
    /// The models to serve without `--model`, as catalogue ids.
    pub default_models: Vec<String>,
    /// Whether to serve also the models of the configuration and those on disk, each loaded at its first request.
    pub on_demand: bool,
    /// Time without a request after which a model is unloaded [minutes, may be a fraction]. 0: never.
    pub idle_unload_minutes: f64,
    /// The most models that are loaded at once. 0: as many as memory holds.
    pub max_loaded_models: usize,
    /// The most memory of all loaded models together [bytes]. 0: the device's free memory.
    pub model_memory_bytes: u64,
    /// The longest time that a request waits for its model, for memory and for the load [s].
    pub model_wait_seconds: u64,
    /// A log level, or a filter in the syntax of `tracing`.
    pub log: String,
    pub log_format: LogFormat,
    /// Whether to log the body of each request, including prompts.
    pub log_prompts: bool,
    /// Whether `/metrics` repeats the metrics that vLLM also has, under vLLM's names.
    pub vllm_metrics: bool,
    /// Whether to serve a chat page at `/`.
    pub chat_page: bool,
    /// The folders below which `/v1/load_lora_adapter` finds adapters. Empty: no adapter is loaded by its path.
    pub adapter_folders: Vec<PathBuf>,
}

/// The backend to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A GPU if there is one, otherwise the CPU.
    Auto,
    Cpu,
    Cuda,
}

impl Backend {
    pub const NAMES: [&'static str; 3] = ["auto", "cpu", "cuda"];

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            _ => Err("choose auto, cpu or cuda".into()),
        }
    }
}

/// The section `[engine]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    pub backend: Backend,
    /// Index of the GPU.
    pub device: u32,
    /// How often each model is loaded, unless its entry says so: on this many GPUs, starting at `device`, or on parts of the CPU.
    pub replicas: usize,
    /// Share of the GPU's memory that may be in use after the KV cache is allocated. Used if `kv_tokens` is 0.
    pub gpu_memory_fraction: f64,
    /// Time without progress after which an engine counts as stuck, which ends the process [s].
    pub step_timeout_seconds: u64,
    /// Number of CPU threads. 0: one per physical core.
    pub threads: usize,
    /// The longest context served, unless the model's entry sets its own. A model's own limit still applies.
    pub context: Context,
    /// Size of the KV cache [tokens]. 0: one context on the CPU, and as many as fit within `gpu_memory_fraction` on a GPU.
    pub kv_tokens: usize,
    /// How the KV cache stores keys and values, unless the model's entry sets its own.
    pub cache_type: CacheType,
    /// Time without requests after which a model gives back the memory of cached prompts [s].
    pub cache_idle_seconds: u64,
    /// Tokens per KV block: a power of two from 32 to 256, which every backend supports.
    pub block_size: usize,
    /// The most rows per step. 0: 512 on the CPU, 2048 on a GPU.
    pub max_batch_tokens: usize,
    /// The most sequences that run at once. 0: 32 on the CPU, 256 on a GPU.
    pub max_running: usize,
    pub prefix_cache: bool,
    /// Whether answers are drafted, unless the model's entry sets its own.
    pub drafts: Drafts,
    /// Whether decode steps run in loops on the GPU.
    pub resident: Resident,
    /// Whether to map model files. `false` copies them into memory, for files that other programs may overwrite in place.
    pub mmap: bool,
    /// The most memory of the host for adapters that were read [bytes]. The least recently used one goes first, and none that is in use.
    pub adapter_cache_bytes: u64,
    /// The most adapters that an engine has loaded at once. Requests wait while all of them are in use.
    pub max_adapters: usize,
}

/// How a request with an unknown field is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// The request gets a 400 that names the field and the nearest known one.
    Refuse,
    /// The request is refused if the field looks like a mistake: its name is almost a known one, or the field would change the answer
    /// elsewhere. Otherwise the field is left out and named.
    #[default]
    Name,
    /// The field is left out and named.
    Ignore,
}

/// The section `[limits]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The most requests that wait per model. Further ones get 429.
    pub max_queue: usize,
    /// The most prompt tokens that wait per model. Further requests get 429. 0: 16 times the model's KV cache, and at least 64 tokens per
    /// place of `max_queue`.
    pub max_queue_tokens: usize,
    /// The longest time that a request may wait in the queue [s]. 0: no limit.
    pub max_queue_seconds: u64,
    /// The longest time that a request may take [s]. 0: no limit. A client may ask for less.
    pub request_timeout_seconds: u64,
    /// The largest request body after decompression [bytes].
    pub max_body_bytes: usize,
    /// The most memory for all request bodies at once, as received and as parsed [bytes]. A request that does not fit gets 429. 0 in a file
    /// means 16 times `max_body_bytes`, at least 16 MiB, and is replaced by that number.
    pub max_bodies_bytes: usize,
    pub max_stop_sequences: usize,
    /// The most prompts in one completions request, at most `max_queue`.
    pub max_prompts: usize,
    /// Whether to refuse a request whose `max_tokens` exceeds the context. Otherwise its answer ends with the context.
    pub strict_max_tokens: bool,
    /// How a request with an unknown field is handled.
    pub unknown_fields: UnknownFields,
    /// Whether a request may bring its own chat template, which runs in the same sandbox as the models' templates.
    pub request_templates: bool,
    /// The most responses kept for `previous_response_id`. The least recently used one is dropped first. 0: none are kept.
    pub max_stored_responses: usize,
    /// The longest time to receive a request's head [s].
    pub head_timeout_seconds: u64,
    /// The longest time to receive a request's body [s].
    pub body_timeout_seconds: u64,
}
