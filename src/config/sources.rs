//! The sources of a configuration: a directory, a file and the environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::error::ConfigError;

/// Prefix of environment variables that are settings.
pub(super) const PREFIX: &str = "PENSTOCK__";

/// The sources of a configuration, except flags.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The directory whose `*.toml` files are read. It may be missing.
    pub dir: PathBuf,
    /// The value of `--config`.
    pub file: Option<PathBuf>,
    /// Environment variables. Those with the prefix `PENSTOCK__` are settings.
    pub env: Vec<(String, String)>,
}

impl ConfigSources {
    /// The sources of this process: `./config`, `file`, and the environment.
    pub fn of_process(file: Option<&Path>) -> Result<Self, ConfigError> {
        Ok(Self { dir: PathBuf::from("config"), file: file.map(Path::to_owned), env: utf8_pairs(std::env::vars_os())? })
    }

    /// The value of a variable, if it is set and not empty.
    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }
}

/// Selects the variables whose names and values are UTF-8.
///
/// # Errors
/// The value of a setting is not UTF-8. Other variables may have any value.
pub(super) fn utf8_pairs(vars: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, ConfigError> {
    let mut pairs = Vec::new();
    for (key, value) in vars {
        let Ok(key) = key.into_string() else { continue };
        match value.into_string() {
            Ok(value) => pairs.push((key, value)),
            Err(_) if key.starts_with(PREFIX) => {
                return Err(ConfigError::File { origin: env_origin(&key), fault: "the value is not UTF-8".into() });
            }
            Err(_) => {}
        }
    }
    Ok(pairs)
}

/// The name of an environment variable in errors.
pub(super) fn env_origin(name: &str) -> String {
    format!("environment variable {name}")
}
