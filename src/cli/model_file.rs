//! The file of a model that a command was given by its name or its path.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::catalogue::{Store, resolve};
use crate::config::{Config, Overrides};

/// The file of a model: an id or alias of one on disk, or a path.
///
/// # Errors
/// Nothing has this name, or the model was not fetched.
pub fn model_file(name: &str, config: Option<&Path>) -> anyhow::Result<PathBuf> {
    if Path::new(name).is_file() {
        return Ok(name.into());
    }
    let config = Config::load(config, &Overrides::default())?;
    let entry = resolve(&config, name)?;
    let path = Store::new(&config.server.models_dir).path(&entry);
    path.with_context(|| format!("`{}` is not on disk: `penstock pull {}` fetches it", entry.id, entry.id))
}
