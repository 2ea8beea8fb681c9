//! The settings, with what each one means.

use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::auth::Auth;
use super::context::Context;
use super::entry::ModelEntry;
use super::log::LogFormat;
use super::storage::Storage;
use super::traces::Traces;

/// The whole configuration.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub auth: Auth,
    pub engine: Engine,
    pub limits: Limits,
    pub storage: Storage,
    pub traces: Traces,
    /// The catalogue: every model that the server knows by name.
    pub models: Vec<ModelEntry>,
}

/// `[server]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub host: IpAddr,
    pub port: u16,
    /// The host names that requests may name, besides those of this machine. Empty: on a loopback address no other, elsewhere any.
    pub allowed_hosts: Vec<String>,
    /// The origins whose pages may use the server from a browser.
    pub cors_origins: Vec<String>,
    /// The certificate and its chain, and its private key, as PEM. "": the server speaks plain HTTP.
    pub tls_cert: PathBuf,
    pub tls_key: PathBuf,
    /// HTTP worker threads. 0 in a file means one per core and is replaced by that number.
    pub workers: usize,
    /// The directory for downloaded models. "" in a file means the user's data directory and is replaced by its path.
    pub models_dir: PathBuf,
    /// Seconds that running requests get to finish after SIGTERM.
    pub drain_seconds: u64,
    /// Seconds without output after which a stream gets a `: ping` comment.
    pub keep_alive_seconds: u64,
    /// The models to serve without `--model`: catalogue ids.
    pub default_models: Vec<String>,
    /// Also serve the models of the configuration and those on disk, each loaded at its first request.
    pub on_demand: bool,
    /// Minutes without a request after which a model is unloaded, a fraction where wanted. 0: never.
    pub idle_unload_minutes: f64,
    /// Models that are loaded at once. 0: as many as memory holds.
    pub max_loaded_models: usize,
    /// Bytes that loaded models may take together. 0: what the device has free.
    pub model_memory_bytes: u64,
    /// Seconds that a request waits for its model: for room, and for the load.
    pub model_wait_seconds: u64,
    /// A log level, or a filter in the syntax of `tracing`.
    pub log: String,
    pub log_format: LogFormat,
    /// Log the body of each request, prompts and all.
    pub log_prompts: bool,
    /// `/metrics` repeats the metrics that vLLM also has, under vLLM's names.
    pub vllm_metrics: bool,
    /// Serve a chat page at `/`.
    pub chat_page: bool,
}

/// Where to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// On a GPU if there is one, otherwise on the CPU.
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

/// `[engine]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    pub backend: Backend,
    /// Index of the GPU.
    pub device: u32,
    /// If `kv_tokens` is 0: the share of the GPU's memory that may be in use after the KV cache is allocated.
    pub gpu_memory_fraction: f64,
    /// Seconds after which a step on the GPU counts as stuck, which ends the process.
    pub step_timeout_seconds: u64,
    /// CPU threads. 0: one per physical core.
    pub threads: usize,
    /// The longest context served, unless the model's entry sets its own. A model's own limit still applies.
    pub context: Context,
    /// Tokens in the KV cache. 0: one context on the CPU, as many as fit within `gpu_memory_fraction` on a GPU.
    pub kv_tokens: usize,
    /// Seconds after which a model without requests gives back the memory of cached prompts.
    pub cache_idle_seconds: u64,
    /// Tokens per KV block: a power of two from 32 to 256, which every backend takes.
    pub block_size: usize,
    /// Rows per step. 0: 512 on the CPU, 2048 on a GPU.
    pub max_batch_tokens: usize,
    /// Sequences that run at once. 0: 32 on the CPU, 256 on a GPU.
    pub max_running: usize,
    pub prefix_cache: bool,
    /// Map model files. false copies them into memory, for files that other programs may write to in place.
    pub mmap: bool,
}

/// What becomes of a request with a field that the server does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnknownFields {
    /// It gets a 400 that names the field and the nearest known one.
    Refuse,
    /// The request is refused if the field looks like a mistake: its name is almost a known one, or the field would change the answer
    /// elsewhere. Otherwise the field is left out and named.
    #[default]
    Name,
    /// The field is left out and named.
    Ignore,
}

/// `[limits]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests that may wait for each model. Further ones get 429.
    pub max_queue: usize,
    /// Tokens of the prompts that may wait for each model. Further requests get 429. 0: 16 times the model's KV cache, and at least 64 for
    /// each of the `max_queue`.
    pub max_queue_tokens: usize,
    /// Seconds that a request may wait for its turn. 0: no limit.
    pub max_queue_seconds: u64,
    /// Seconds that a request may take. 0: no limit. A client may ask for less.
    pub request_timeout_seconds: u64,
    /// Bytes of a request body after decompression.
    pub max_body_bytes: usize,
    /// Bytes of memory for all request bodies at once, as received and as parsed. A request that does not fit gets 429. 0 in a file means
    /// 16 times `max_body_bytes`, at least 16 MiB, and is replaced by that number.
    pub max_bodies_bytes: usize,
    pub max_stop_sequences: usize,
    /// Prompts in one completions request, at most `max_queue`.
    pub max_prompts: usize,
    /// Refuse a request whose `max_tokens` go past the context's end. Otherwise its answer ends with the context.
    pub strict_max_tokens: bool,
    /// What becomes of a request with a field that the server does not know.
    pub unknown_fields: UnknownFields,
    /// Whether a request may bring a chat template of its own. It runs in the sandbox of the models' templates.
    pub request_templates: bool,
    /// Responses kept for `previous_response_id`. The least recently used one is dropped first. 0: none are kept.
    pub max_stored_responses: usize,
    /// Seconds to receive a request's head.
    pub head_timeout_seconds: u64,
    /// Seconds to receive a request's body.
    pub body_timeout_seconds: u64,
}
