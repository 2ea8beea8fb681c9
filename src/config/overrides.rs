//! Settings from command-line flags.

use std::net::IpAddr;

use super::adapters::AdapterEntry;
use super::cache_type::CacheType;
use super::context::Context;
use super::log::LogFormat;
use super::mmproj::Mmproj;
use super::settings::Backend;

/// Settings from command-line flags. `None` and an empty list leave a setting unchanged.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--host`
    pub host: Option<IpAddr>,
    /// `--port`
    pub port: Option<u16>,
    /// `--model`: replaces `server.default_models` by catalogue ids, aliases or paths of GGUF files.
    pub models: Vec<String>,
    /// `--mmproj`: the picture encoder of the one model in `models`, which is a path.
    pub mmproj: Option<Mmproj>,
    /// `--draft`: the draft model of the one model in `models`.
    pub draft: Option<String>,
    /// `--adapter`: adapters of the served models.
    pub adapters: Vec<AdapterEntry>,
    /// `--log`, `-q` or `-v`
    pub log: Option<String>,
    /// `--log-format`
    pub log_format: Option<LogFormat>,
    /// `--backend`
    pub backend: Option<Backend>,
    /// `--threads`
    pub threads: Option<usize>,
    /// `--device`
    pub device: Option<u32>,
    /// `--replicas`
    pub replicas: Option<usize>,
    /// `--context`
    pub context: Option<Context>,
    /// `--cache-type`
    pub cache_type: Option<CacheType>,
}
