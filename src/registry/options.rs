//! Converts the configuration to options for opening and running a model.

use std::time::Duration;

use anyhow::ensure;

use super::exit_on_fault;
use config::{self, Config, ModelEntry};
use engine::{BackendKind, CacheType, EngineOptions, Resident};
use logits::SamplingChoice;
use scheduler::{SchedulerOptions, Watchdog};
use serving::{DiskCache, RunOptions};

/// The options of a model that is served with `context` tokens of context.
pub fn run_options(config: &Config, entry: &ModelEntry, context: usize) -> anyhow::Result<RunOptions> {
    let engine = &config.engine;
    let (kv, block) = (engine.kv_tokens, engine.block_size);
    let holds_context = kv == 0 || kv.next_multiple_of(block) >= context;
    ensure!(holds_context, "engine.kv_tokens is {kv}, which does not hold one context of {context} tokens");
    Ok(RunOptions {
        mmproj: None,
        draft: None,
        name: entry.id.clone(),
        engine: EngineOptions { context, ..engine_options(engine, entry) },
        scheduler: SchedulerOptions {
            max_batch_tokens: engine.max_batch_tokens,
            max_running: engine.max_running,
            max_waiting: config.limits.max_queue,
            max_waiting_tokens: config.limits.max_queue_tokens,
            prefix_cache: engine.prefix_cache,
            drafts: false,
        },
        disk: config.cache.disk.bytes.map(|bytes| DiskCache { folder: config.cache.folder.clone(), bytes }),
        share: 1.0,
        cache_idle: Duration::from_secs(engine.cache_idle_seconds),
        watchdog: Watchdog { step_timeout: Duration::from_secs(engine.step_timeout_seconds), on_fault: exit_on_fault::end_process },
    })
}

/// Converts the section `[engine]` to an engine's options for the model of an entry, without the context, which depends on the file.
pub fn engine_options(engine: &config::Engine, entry: &ModelEntry) -> EngineOptions {
    EngineOptions {
        threads: engine.threads,
        device: engine.device,
        kv_tokens: engine.kv_tokens,
        gpu_memory_fraction: engine.gpu_memory_fraction,
        block_size: engine.block_size,
        cache_type: cache_type(entry.cache_type.unwrap_or(engine.cache_type)),
        max_slots: engine.max_running,
        max_batch_tokens: engine.max_batch_tokens,
        max_adapters: engine.max_adapters,
        resident: resident(engine.resident),
        ..EngineOptions::default()
    }
}

/// The sampling values for requests that do not choose. An entry of the configuration wins over the model's file, which wins over the
/// built-in catalogue.
pub fn default_sampling(entry: &ModelEntry, of_file: SamplingChoice) -> SamplingChoice {
    let recommended = entry.made.as_ref().map_or_else(SamplingChoice::default, |made| made.recommended);
    if entry.built_in { of_file.or(entry.sampling) } else { entry.sampling.or(of_file).or(recommended) }
}

/// Converts the setting `engine.cache_type` (or the flag `--cache-type`) to the engine's type. None: the device's own.
pub fn cache_type(cache_type: config::CacheType) -> Option<CacheType> {
    match cache_type {
        config::CacheType::Auto => None,
        config::CacheType::F32 => Some(CacheType::F32),
        config::CacheType::F16 => Some(CacheType::F16),
        config::CacheType::Q8 => Some(CacheType::Q8),
    }
}

fn resident(resident: config::Resident) -> Resident {
    match resident {
        config::Resident::Auto => Resident::Auto,
        config::Resident::On => Resident::On,
        config::Resident::Off => Resident::Off,
    }
}

/// Converts the setting `engine.backend` (or the flag `--backend`) to the engine's type. None: the first backend that has a device.
pub fn backend(backend: config::Backend) -> Option<BackendKind> {
    match backend {
        config::Backend::Auto => None,
        config::Backend::Cpu => Some(BackendKind::Cpu),
        config::Backend::Cuda => Some(BackendKind::Cuda),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{ConfigSources, Overrides};

    #[test]
    fn the_configuration_wins_over_the_file_and_the_file_over_the_catalogue() {
        let mut entry = ModelEntry::new("m", config::Source::File { path: "m.gguf".into() });
        entry.sampling = SamplingChoice { temperature: Some(0.1), top_k: Some(5), ..SamplingChoice::default() };
        let of_file = SamplingChoice { temperature: Some(0.9), top_p: Some(0.8), ..SamplingChoice::default() };
        let values = |entry: &ModelEntry| {
            let SamplingChoice { temperature, top_k, top_p, min_p, .. } = default_sampling(entry, of_file);
            (temperature, top_k, top_p, min_p)
        };
        assert_eq!(values(&entry), (Some(0.1), Some(5), Some(0.8), None));
        entry.built_in = true;
        assert_eq!(values(&entry), (Some(0.9), Some(5), Some(0.8), None));
    }

    #[test]
    fn the_kv_cache_holds_at_least_one_context() {
        let env = vec![("HOME".into(), "/home/u".into())];
        let mut config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        config.engine.block_size = 16;
        let entry = ModelEntry::new("m", config::Source::File { path: "m.gguf".into() });
        let mut kv_tokens = |tokens| {
            config.engine.kv_tokens = tokens;
            run_options(&config, &entry, 100).map(|options| options.engine.kv_tokens).map_err(|error| error.to_string())
        };
        assert_eq!(kv_tokens(0), Ok(0));
        assert_eq!(kv_tokens(97), Ok(97), "97 tokens are rounded up to whole blocks, which hold 100");
        assert!(kv_tokens(90).unwrap_err().contains("engine.kv_tokens is 90"));
    }
}
