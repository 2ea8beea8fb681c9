//! Reloads the configuration of `penstock serve` at SIGHUP.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::log_args::LogArgs;
use crate::config::{Config, Overrides};
use crate::registry::Registry;
use crate::telemetry;

/// The inputs of the configuration at start, which a reload reads again.
pub struct Reloader {
    pub file: Option<PathBuf>,
    pub overrides: Overrides,
    pub log: LogArgs,
    pub registry: Arc<Registry>,
    /// The configuration that the server was started with.
    pub first: Config,
}

/// The settings that can change while the server runs. The file of keys is read again whenever it changes.
const LIVE: &[&str] = &[
    "server.default_models",
    "server.on_demand",
    "server.idle_unload_minutes",
    "server.max_loaded_models",
    "server.model_memory_bytes",
    "server.model_wait_seconds",
    "server.log",
    "limits.max_body_bytes",
    "limits.max_stop_sequences",
    "limits.max_prompts",
    "limits.strict_max_tokens",
    "limits.unknown_fields",
    "limits.request_templates",
    "limits.body_timeout_seconds",
    "limits.max_queue_seconds",
    "limits.request_timeout_seconds",
];

impl Reloader {
    /// Reads the configuration and applies the settings that can change. `None` if it is wrong. Then the server continues with the old one.
    pub fn reload(&self) -> Option<Config> {
        match self.apply() {
            Ok(config) => {
                tracing::info!(models = self.registry.list().len(), "the configuration was read again");
                Some(config)
            }
            Err(error) => {
                tracing::error!("the configuration stays as it was: {}", format!("{error:#}").escape_debug());
                None
            }
        }
    }

    fn apply(&self) -> anyhow::Result<Config> {
        let config = Config::load(self.file.as_deref(), &self.overrides)?;
        let change_log = telemetry::change(&self.log.of(&config))?;
        self.registry.reload(&config, &config.server.default_models)?;
        change_log();
        for name in needing_restart(&self.first, &config) {
            tracing::warn!("{name} has changed: it needs a restart");
        }
        Ok(config)
    }
}

/// The settings that differ and cannot change while the server runs.
fn needing_restart(before: &Config, after: &Config) -> Vec<String> {
    let (before, after) = (&json(before), json(after));
    let sections = after.as_object().into_iter().flatten().filter(|(section, _)| *section != "models");
    let settings = sections.flat_map(|(section, value)| {
        value.as_object().into_iter().flatten().map(move |(key, value)| (format!("{section}.{key}"), &before[section][key] != value))
    });
    settings.filter(|(name, differs)| *differs && !LIVE.contains(&name.as_str())).map(|(name, _)| name).collect()
}

fn json(config: &Config) -> Value {
    // Cannot fail: all keys of its maps are strings.
    serde_json::to_value(config).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn what_cannot_change_is_named() {
        let config = |pairs: &[(&str, &str)]| {
            let env = pairs.iter().chain(&[("HOME", "/home/u")]).map(|(key, value)| (key.to_string(), value.to_string())).collect();
            Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap()
        };
        let after = config(&[
            ("PENSTOCK__SERVER__PORT", "1"),
            ("PENSTOCK__ENGINE__THREADS", "3"),
            ("PENSTOCK__SERVER__LOG", "warn"),
            ("PENSTOCK__LIMITS__MAX_PROMPTS", "7"),
            ("PENSTOCK__LIMITS__MAX_QUEUE", "7"),
        ]);
        let mut named = needing_restart(&config(&[]), &after);
        named.sort();
        assert_eq!(named, ["engine.threads", "limits.max_queue", "server.port"]);
        let known = json(&after);
        for name in LIVE {
            let (section, key) = name.split_once('.').unwrap();
            assert!(!known[section][key].is_null(), "{name} is a setting");
        }
    }
}
