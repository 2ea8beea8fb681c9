//! Checks the ranges of settings, and fills in defaults that depend on the machine.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::log::log_filter;
use super::mmproj::{Mmproj, MmprojFile};
use super::reach::{check_host, check_origin, check_picture_host};
use super::settings::{Config, Engine, Limits, Server};
use super::source::Source;
use super::sources::ConfigSources;

/// The least memory for all bodies, in multiples of the largest body. One body takes up to 13, and an eighth is kept for small bodies.
const BODIES_PER_LARGEST: usize = 16;
/// The least size that counts as the largest body, because even the tree of a small body may take several times this [bytes].
const SMALL_BODY: usize = 1 << 20;

type Checked = Result<(), String>;

fn within<T: PartialOrd + std::fmt::Display>(value: T, range: RangeInclusive<T>) -> Checked {
    if range.contains(&value) { Ok(()) } else { Err(format!("{value} is not between {} and {}", range.start(), range.end())) }
}

/// More GPUs than a host has.
pub(super) const MAX_REPLICAS: usize = 64;

/// A year [minutes].
pub(super) const MAX_IDLE_MINUTES: f64 = 525_600.0;

/// Checks the setting of `[server]` that was set last.
pub(super) fn server(key: &str, server: &Server) -> Checked {
    match key {
        "workers" => within(server.workers, 0..=1024),
        "drain_seconds" => within(server.drain_seconds, 0..=3600),
        "keep_alive_seconds" => within(server.keep_alive_seconds, 1..=3600),
        "idle_unload_minutes" => within(server.idle_unload_minutes, 0.0..=MAX_IDLE_MINUTES),
        "max_loaded_models" => within(server.max_loaded_models, 0..=10_000),
        "model_wait_seconds" => within(server.model_wait_seconds, 1..=3600),
        "allowed_hosts" => server.allowed_hosts.iter().try_for_each(|name| check_host(name)),
        "picture_hosts" => server.picture_hosts.iter().try_for_each(|host| check_picture_host(host)),
        "cors_origins" => server.cors_origins.iter().try_for_each(|origin| check_origin(origin)),
        "adapter_folders" if server.adapter_folders.iter().any(|folder| folder.as_os_str().is_empty()) => Err("a folder is empty".into()),
        "log" => log_filter(&server.log).map(drop),
        "default_models" if server.default_models.iter().any(String::is_empty) => Err("a model name is empty".into()),
        _ => Ok(()),
    }
}

/// Checks the setting of `[engine]` that was set last.
pub(super) fn engine(key: &str, engine: &Engine) -> Checked {
    match key {
        "threads" => within(engine.threads, 0..=1024),
        "device" => within(engine.device, 0..=255),
        "replicas" => within(engine.replicas, 1..=MAX_REPLICAS),
        "gpu_memory_fraction" => within(engine.gpu_memory_fraction, 0.05..=1.0),
        "step_timeout_seconds" => within(engine.step_timeout_seconds, 1..=3600),
        "kv_tokens" => within(engine.kv_tokens, 0..=1 << 30),
        "cache_idle_seconds" => within(engine.cache_idle_seconds, 1..=1 << 20),
        "block_size" if !engine.block_size.is_power_of_two() => Err(format!("{} is not a power of two", engine.block_size)),
        "block_size" => within(engine.block_size, 32..=256),
        "max_batch_tokens" => within(engine.max_batch_tokens, 0..=1 << 16),
        "max_adapters" => within(engine.max_adapters, 0..=64),
        "adapter_cache_bytes" => within(engine.adapter_cache_bytes, 1 << 20..=1 << 44),
        "max_running" => within(engine.max_running, 0..=4096),
        _ => Ok(()),
    }
}

/// Checks that the largest body can always be served while there is no other.
fn bodies(limits: &Limits) -> Checked {
    let (all, least) = (limits.max_bodies_bytes, least_for_bodies(limits));
    if all == 0 || all >= least {
        return Ok(());
    }
    Err(format!("max_bodies_bytes is {all}: with a max_body_bytes of {}, it must be 0 or at least {least}", limits.max_body_bytes))
}

fn least_for_bodies(limits: &Limits) -> usize {
    BODIES_PER_LARGEST.saturating_mul(limits.max_body_bytes.max(SMALL_BODY))
}

/// Checks the setting of `[limits]` that was set last.
pub(super) fn limits(key: &str, limits: &Limits) -> Checked {
    match key {
        "max_queue" => within(limits.max_queue, 1..=1 << 20),
        "max_queue_tokens" => within(limits.max_queue_tokens, 0..=1 << 40),
        "max_queue_seconds" => within(limits.max_queue_seconds, 0..=86400),
        "request_timeout_seconds" => within(limits.request_timeout_seconds, 0..=86400),
        "max_body_bytes" => within(limits.max_body_bytes, 1024..=1 << 30).and_then(|()| bodies(limits)),
        "max_bodies_bytes" => bodies(limits),
        "max_stop_sequences" => within(limits.max_stop_sequences, 0..=64),
        "max_stored_responses" => within(limits.max_stored_responses, 0..=1 << 20),
        "max_prompts" => within(limits.max_prompts, 1..=1 << 16),
        "head_timeout_seconds" => within(limits.head_timeout_seconds, 1..=3600),
        "body_timeout_seconds" => within(limits.body_timeout_seconds, 1..=3600),
        _ => Ok(()),
    }
}

/// The message without key and source, which the caller adds.
pub(super) fn plain(error: config_rs::ConfigError) -> String {
    match error {
        config_rs::ConfigError::Type { unexpected, expected, .. } => format!("found {unexpected}, expected {expected}"),
        config_rs::ConfigError::At { error, .. } => plain(*error),
        config_rs::ConfigError::Message(text) => text,
        other => other.to_string(),
    }
}

/// Replaces values that mean "this machine's default".
pub(super) fn resolve(config: &mut Config, surroundings: &ConfigSources) -> Result<(), ConfigError> {
    if config.server.workers == 0 {
        config.server.workers = std::thread::available_parallelism().map_or(2, usize::from);
    }
    if config.limits.max_bodies_bytes == 0 {
        config.limits.max_bodies_bytes = least_for_bodies(&config.limits);
    }
    config.server.models_dir = if config.server.models_dir.as_os_str().is_empty() {
        data_dir(surroundings)?.join("penstock").join("models")
    } else {
        expand_home(&config.server.models_dir, surroundings)
    };
    config.auth.keys_file = match config.auth.keys_file.as_os_str().is_empty() {
        // Without a data directory there is no default file.
        true => data_dir(surroundings).map(|dir| dir.join("penstock").join("keys.toml")).unwrap_or_default(),
        false => expand_home(&config.auth.keys_file, surroundings),
    };
    config.storage.folder = match config.storage.folder.as_os_str().is_empty() {
        true => data_dir(surroundings).map(|dir| dir.join("penstock").join("files")).unwrap_or_default(),
        false => expand_home(&config.storage.folder, surroundings),
    };
    config.cache.folder = match config.cache.folder.as_os_str().is_empty() {
        true => data_dir(surroundings).map(|dir| dir.join("penstock").join("prefixes")).unwrap_or_default(),
        false => expand_home(&config.cache.folder, surroundings),
    };
    disk_cache(config)?;
    let server = &mut config.server;
    (server.tls_cert, server.tls_key) = (expand_home(&server.tls_cert, surroundings), expand_home(&server.tls_key, surroundings));
    if server.tls_cert.as_os_str().is_empty() != server.tls_key.as_os_str().is_empty() {
        let (missing, given) = if server.tls_cert.as_os_str().is_empty() { ("tls_cert", "tls_key") } else { ("tls_key", "tls_cert") };
        let fault = format!("it is not set, but server.{given} is: TLS needs both");
        return Err(ConfigError::BadValue { origin: "the configuration".into(), key: format!("server.{missing}"), fault });
    }
    for entry in &mut config.models {
        if let Source::File { path } = &mut entry.source {
            *path = expand_home(path, surroundings);
        }
        entry.mmproj = entry.mmproj.take().map(|mmproj| in_home(mmproj, surroundings));
        entry.draft = entry.draft.take().map(|name| name_in_home(name, surroundings));
        entry.chat_template = entry.chat_template.as_deref().map(|path| expand_home(path, surroundings));
    }
    config.adapters.iter_mut().for_each(|entry| entry.path = expand_home(&entry.path, surroundings));
    config.server.adapter_folders.iter_mut().for_each(|folder| *folder = expand_home(folder, surroundings));
    config.mmproj = config.mmproj.take().map(|mmproj| in_home(mmproj, surroundings));
    Ok(())
}

/// The name of a model, or a path below the home directory.
fn name_in_home(name: String, surroundings: &ConfigSources) -> String {
    if name.starts_with("~/") { expand_home(Path::new(&name), surroundings).display().to_string() } else { name }
}

/// Checks that files for the prefix cache have a prefix cache and a folder.
fn disk_cache(config: &Config) -> Result<(), ConfigError> {
    let bad =
        |key: &str, fault: &str| Err(ConfigError::BadValue { origin: "the configuration".into(), key: key.into(), fault: fault.into() });
    match config.cache.disk.bytes {
        Some(_) if !config.engine.prefix_cache => bad(
            "cache.disk",
            "it keeps what the prefix cache holds, and engine.prefix_cache is false: set it to true, or cache.disk to \"off\"",
        ),
        Some(_) if config.cache.folder.as_os_str().is_empty() => {
            bad("cache.folder", "neither XDG_DATA_HOME nor HOME is set: name a folder, or set cache.disk to \"off\"")
        }
        _ => Ok(()),
    }
}

fn in_home(mmproj: Mmproj, surroundings: &ConfigSources) -> Mmproj {
    match mmproj {
        Mmproj::File(MmprojFile { source: Source::File { path }, sha256, size }) => {
            Mmproj::File(MmprojFile { source: Source::File { path: expand_home(&path, surroundings) }, sha256, size })
        }
        other => other,
    }
}

fn data_dir(surroundings: &ConfigSources) -> Result<PathBuf, ConfigError> {
    // The XDG specification says to ignore relative paths.
    if let Some(dir) = surroundings.var("XDG_DATA_HOME").map(Path::new).filter(|dir| dir.is_absolute()) {
        return Ok(dir.to_owned());
    }
    surroundings.var("HOME").map(|home| Path::new(home).join(".local").join("share")).ok_or_else(|| ConfigError::BadValue {
        origin: "built-in defaults".into(),
        key: "server.models_dir".into(),
        fault: "neither XDG_DATA_HOME nor HOME is set: set PENSTOCK__SERVER__MODELS_DIR".into(),
    })
}

fn expand_home(path: &Path, surroundings: &ConfigSources) -> PathBuf {
    match (path.strip_prefix("~"), surroundings.var("HOME")) {
        (Ok(rest), Some(home)) => Path::new(home).join(rest),
        _ => path.to_owned(),
    }
}
