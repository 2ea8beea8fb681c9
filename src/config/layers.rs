//! Reads the layers of a configuration. Each layer overrides the previous ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config_rs::{File, FileFormat, FileSourceString, Map, Source as _, Value, ValueKind};
use outside::read_text;
use serde::de::DeserializeOwned;

use super::adapter_layers::Adapters;
use super::auth::{self, Auth};
use super::cache::Cache;
use super::check_entry::check_mmproj;
use super::entry::find_model;
use super::error::ConfigError;
use super::models::{BUILT_IN, Models};
use super::overrides::Overrides;
use super::settings::{Config, Engine, Limits, Server};
use super::source::Source;
use super::sources::{ConfigSources, PREFIX, env_origin};
use super::storage::{self, Storage};
use super::traces::{self, Traces};
use super::validate;

const DEFAULTS: &str = include_str!("../../config/default.toml");
const CATALOGUE: &str = include_str!("../../config/catalogue.toml");
/// Far above any real file of settings [bytes].
const MAX_BYTES: u64 = 16 << 20;
/// Files in `./config` that are not read: two are built into the binary, and one is documentation.
const NOT_READ: [&str; 3] = ["default.toml", "catalogue.toml", "example.toml"];

impl Config {
    /// Reads every layer. `file`: the value of the flag `--config`.
    pub fn load(file: Option<&Path>, overrides: &Overrides) -> Result<Self, ConfigError> {
        load(&ConfigSources::of_process(file)?, overrides)
    }

    /// Like [`Config::load`], with the given directory, file and environment.
    pub fn load_from(surroundings: &ConfigSources, overrides: &Overrides) -> Result<Self, ConfigError> {
        load(surroundings, overrides)
    }
}

type Section = Map<String, Value>;

/// A value and its origin.
struct Setting<'a> {
    origin: &'a str,
    section: &'a str,
    key: &'a str,
    value: Value,
}

/// The settings so far. They always deserialise and are in range, so a fault belongs to the value set last.
struct Merged {
    sections: Map<String, Section>,
    models: Models,
    adapters: Adapters,
}

fn load(surroundings: &ConfigSources, overrides: &Overrides) -> Result<Config, ConfigError> {
    let mut merged = Merged::new()?;
    for path in files(surroundings)? {
        let origin = path.display().to_string();
        let text = read_text(&path, MAX_BYTES).map_err(|error| ConfigError::File { origin: origin.clone(), fault: error.to_string() })?;
        merged.file(&origin, &text)?;
    }
    merged.environment(&surroundings.env)?;
    merged.flags(overrides)?;
    merged.adapters.add("--adapter", overrides.adapters.clone())?;
    let models = std::mem::take(&mut merged.models).finish()?;
    let adapters = std::mem::take(&mut merged.adapters).finish(&models)?;
    let mut config = Config {
        server: merged.section("server").map_err(|fault| builtin_fault(&fault))?,
        auth: merged.section("auth").map_err(|fault| builtin_fault(&fault))?,
        engine: merged.section("engine").map_err(|fault| builtin_fault(&fault))?,
        cache: merged.section("cache").map_err(|fault| builtin_fault(&fault))?,
        limits: merged.section("limits").map_err(|fault| builtin_fault(&fault))?,
        storage: merged.section("storage").map_err(|fault| builtin_fault(&fault))?,
        traces: merged.section("traces").map_err(|fault| builtin_fault(&fault))?,
        models,
        adapters,
        mmproj: overrides.mmproj.clone(),
        draft: overrides.draft.clone(),
    };
    check_flag(&config, overrides)?;
    check_draft(overrides)?;
    validate::resolve(&mut config, surroundings)?;
    Ok(config)
}

/// Checks that `--mmproj` stands beside one model that is a file.
fn check_flag(config: &Config, Overrides { models, mmproj, .. }: &Overrides) -> Result<(), ConfigError> {
    let Some(mmproj) = mmproj else { return Ok(()) };
    let bad = |fault: String| Err(ConfigError::BadValue { origin: "--mmproj".into(), key: "mmproj".into(), fault });
    let is_file = |name: &String| name.to_ascii_lowercase().ends_with(".gguf") && find_model(&config.models, name).is_none();
    match &models[..] {
        [one] if is_file(one) => check_mmproj(mmproj, &Source::File { path: one.into() }).or_else(bad),
        [one] => bad(format!("the model `{one}` is not a file: set `mmproj` in its entry of [[models]]")),
        [] => bad("it belongs to a file: name the file with --model FILE.gguf".into()),
        several => bad(format!("{} models are named: set `mmproj` in entries of [[models]] instead", several.len())),
    }
}

/// Checks that `--draft` stands beside one model.
fn check_draft(Overrides { models, draft, .. }: &Overrides) -> Result<(), ConfigError> {
    let fault = match (draft, models.len()) {
        (None, _) | (Some(_), 1) => return Ok(()),
        (Some(_), 0) => "it belongs to a model: name the model with --model".to_owned(),
        (Some(_), several) => format!("{several} models are named: set `draft` in entries of [[models]] instead"),
    };
    Err(ConfigError::BadValue { origin: "--draft".into(), key: "draft".into(), fault })
}

fn builtin_fault(fault: &str) -> ConfigError {
    ConfigError::File { origin: "built-in defaults".into(), fault: fault.into() }
}

/// The files to read, in order.
fn files(surroundings: &ConfigSources) -> Result<Vec<PathBuf>, ConfigError> {
    let mut paths = Vec::new();
    if let Ok(entries) = std::fs::read_dir(&surroundings.dir) {
        paths.extend(entries.flatten().map(|entry| entry.path()).filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(".toml") && !name.starts_with('.') && !NOT_READ.contains(&name)
        }));
        paths.sort();
    }
    paths.extend(surroundings.file.clone());
    Ok(paths)
}

fn parse(origin: &str, text: &str) -> Result<Map<String, Value>, ConfigError> {
    let file: File<FileSourceString, FileFormat> = File::from_str(text, FileFormat::Toml);
    file.collect().map_err(|error| ConfigError::File { origin: origin.into(), fault: one_line(&error.to_string()) })
}

/// Every setting, as its section and its key.
pub(super) fn setting_names() -> Vec<(String, String)> {
    let sections = parse("built-in defaults", DEFAULTS).unwrap_or_default();
    let tables = sections.into_iter().filter_map(|(section, value)| Some((section, value.into_table().ok()?)));
    let mut names: Vec<_> = tables.flat_map(|(section, keys)| keys.into_keys().map(move |key| (section.clone(), key))).collect();
    names.sort();
    names
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Merged {
    fn new() -> Result<Self, ConfigError> {
        let sections = parse("built-in defaults", DEFAULTS)?
            .into_iter()
            .map(|(name, value)| Ok((name, value.into_table().map_err(|error| builtin_fault(&error.to_string()))?)))
            .collect::<Result<_, ConfigError>>()?;
        let mut merged = Self { sections, models: Models::default(), adapters: Adapters::default() };
        merged.file(BUILT_IN, CATALOGUE)?;
        Ok(merged)
    }

    fn file(&mut self, origin: &str, text: &str) -> Result<(), ConfigError> {
        for (section, value) in parse(origin, text)? {
            if section == "models" {
                self.models.add_layer(origin, value)?;
                continue;
            }
            if section == "adapters" {
                self.adapters.add_layer(origin, value)?;
                continue;
            }
            if !self.sections.contains_key(&section) {
                return Err(self.unknown(origin, &section));
            }
            let bad = |fault: String| ConfigError::BadValue { origin: origin.into(), key: section.clone(), fault };
            // All values of a section are set before the first is checked, because the range of one may depend on another.
            let table: BTreeMap<_, _> = value.into_table().map_err(|_| bad("expected a table".into()))?.into_iter().collect();
            let keys: Vec<String> = table.keys().cloned().collect();
            for (key, value) in table {
                self.put(&Setting { origin, section: &section, key: &key, value })?;
            }
            keys.iter().try_for_each(|key| self.check(origin, &section, key))?;
        }
        Ok(())
    }

    fn environment(&mut self, env: &[(String, String)]) -> Result<(), ConfigError> {
        for (name, text) in env {
            let Some(path) = name.strip_prefix(PREFIX) else { continue };
            let (origin, path) = (env_origin(name), path.to_lowercase());
            let Some((section, key)) = path.split_once("__") else {
                return Err(self.unknown(&origin, &path.replace("__", ".")));
            };
            let is_list = self
                .sections
                .get(section)
                .and_then(|section| section.get(key))
                .is_some_and(|value| matches!(value.kind, ValueKind::Array(_)));
            let value = if is_list {
                list(text.split(',').map(str::trim).filter(|item| !item.is_empty()))
            } else {
                Value::new(None, text.as_str())
            };
            self.set(Setting { origin: &origin, section, key: &key.replace("__", "."), value })?;
        }
        Ok(())
    }

    fn flags(&mut self, overrides: &Overrides) -> Result<(), ConfigError> {
        let Overrides {
            host,
            port,
            models,
            log,
            log_format,
            backend,
            threads,
            device,
            replicas,
            context,
            cache_type,
            mmproj: _,
            draft: _,
            adapters: _,
        } = overrides;
        let mut flags = Vec::new();
        let mut flag =
            |origin, section, key, value: Option<Value>| flags.extend(value.map(|value| Setting { origin, section, key, value }));
        flag("--host", "server", "host", host.map(|host| Value::new(None, host.to_string())));
        flag("--port", "server", "port", port.map(|port| Value::new(None, u64::from(port))));
        flag("--model", "server", "default_models", (!models.is_empty()).then(|| list(models.iter().map(String::as_str))));
        flag("--log", "server", "log", log.as_deref().map(|log| Value::new(None, log)));
        flag("--log-format", "server", "log_format", log_format.map(|format| Value::new(None, format.name())));
        flag("--backend", "engine", "backend", backend.map(|backend| Value::new(None, backend.name())));
        flag("--threads", "engine", "threads", threads.map(|threads| Value::new(None, threads as u64)));
        flag("--device", "engine", "device", device.map(|device| Value::new(None, u64::from(device))));
        flag("--replicas", "engine", "replicas", replicas.map(|replicas| Value::new(None, replicas as u64)));
        flag("--context", "engine", "context", context.map(|context| Value::new(None, context.to_string())));
        flag("--cache-type", "engine", "cache_type", cache_type.map(|kind| Value::new(None, kind.name())));
        flags.into_iter().try_for_each(|setting| self.set(setting))
    }

    /// Overrides a setting and checks the new value.
    fn set(&mut self, setting: Setting<'_>) -> Result<(), ConfigError> {
        self.put(&setting)?;
        self.check(setting.origin, setting.section, setting.key)
    }

    /// Overrides a setting.
    fn put(&mut self, Setting { origin, section, key, value }: &Setting<'_>) -> Result<(), ConfigError> {
        match self.sections.get_mut(*section) {
            Some(known) if known.contains_key(*key) => {
                known.insert((*key).into(), value.clone());
                Ok(())
            }
            _ => Err(self.unknown(origin, &format!("{section}.{key}"))),
        }
    }

    /// Checks a value that was just set.
    fn check(&self, origin: &str, section: &str, key: &str) -> Result<(), ConfigError> {
        let path = format!("{section}.{key}");
        let checked = match section {
            "server" => self.section::<Server>(section).and_then(|server| validate::server(key, &server)),
            "auth" => self.section::<Auth>(section).and_then(|auth| auth::check(key, &auth)),
            "engine" => self.section::<Engine>(section).and_then(|engine| validate::engine(key, &engine)),
            "cache" => self.section::<Cache>(section).map(drop),
            "storage" => self.section::<Storage>(section).and_then(|storage| storage::check(key, &storage)),
            "traces" => self.section::<Traces>(section).and_then(|traces| traces::check(key, &traces)),
            _ => self.section::<Limits>(section).and_then(|limits| validate::limits(key, &limits)),
        };
        checked.map_err(|fault| ConfigError::BadValue { origin: origin.into(), key: path, fault })
    }

    fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, String> {
        let table = self.sections.get(name).cloned().unwrap_or_default();
        Value::new(None, table).try_deserialize().map_err(validate::plain)
    }

    fn unknown(&self, origin: &str, key: &str) -> ConfigError {
        let hint = if key.contains('.') {
            let (section, _) = key.split_once('.').unwrap_or((key, ""));
            self.sections.get(section).map(|section| section.keys().cloned().collect::<Vec<_>>())
        } else {
            None
        };
        let mut known = hint.unwrap_or_else(|| self.sections.keys().cloned().collect());
        known.sort();
        ConfigError::UnknownKey { origin: origin.into(), key: key.into(), hint: format!(" (known here: {})", known.join(", ")) }
    }
}

fn list<'a>(items: impl Iterator<Item = &'a str>) -> Value {
    Value::new(None, items.map(|item| Value::new(None, item)).collect::<Vec<_>>())
}
