//! Finds the file of a named model, for commands that read one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use outside::check_regular;

use super::output::say;
use crate::catalogue::{Store, resolve};
use crate::config::{Config, ModelEntry, Overrides, Source, find_model};

/// A model's file, and the settings of its entry.
pub struct ModelLocation {
    pub path: PathBuf,
    pub entry: ModelEntry,
}

/// Locates a model by id, alias, name on a hub, or path with any suffix. Fetches nothing.
///
/// # Errors
/// No model has the name, or its file is not on disk.
pub fn locate(config: &Config, name: &str) -> anyhow::Result<ModelLocation> {
    hint(config, name);
    match resolve(config, name) {
        Ok(entry) => {
            let store = Store::new(&config.server.models_dir);
            let path = store.path(&entry);
            let path = path.with_context(|| format!("`{}`: {}", entry.id, store.why_missing(&entry)))?;
            Ok(ModelLocation { path, entry })
        }
        Err(error) => match check_regular(Path::new(name)) {
            Ok(_) => Ok(ModelLocation { path: name.into(), entry: ModelEntry::new(name, Source::File { path: name.into() }) }),
            // A folder may be a checkpoint, whose advice is in the other error.
            Err(other) if other.kind() == ErrorKind::InvalidInput && !Path::new(name).is_dir() => bail!("{name}: {other}"),
            Err(_) if is_path(name) && !Path::new(name).is_dir() => Err(error.context(format!("{name}: no such file"))),
            Err(_) => Err(error),
        },
    }
}

/// Tells the user that a name is an earlier one of a model.
pub fn hint(config: &Config, name: &str) {
    if let Some(hint) = find_model(&config.models, name).and_then(|entry| entry.hint_for(name)) {
        say(&hint);
    }
}

/// Finds the file of a model, for commands without other settings.
pub fn file_of(config: Option<&Path>, name: &str) -> anyhow::Result<PathBuf> {
    // A path needs no configuration, which may be broken or lack a home directory.
    if is_path(name) && Path::new(name).is_file() {
        return Ok(name.into());
    }
    Ok(locate(&Config::load(config, &Overrides::default())?, name)?.path)
}

/// Whether a name is written as a path.
fn is_path(name: &str) -> bool {
    let path = Path::new(name);
    let has_end = path.extension().is_some_and(|end| ["gguf", "json", "jinja"].iter().any(|known| end.eq_ignore_ascii_case(known)));
    has_end || name.starts_with(['.', '/', '~'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigSources;

    #[test]
    fn a_name_is_looked_up_before_a_file_and_both_say_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let env = vec![("PENSTOCK__SERVER__MODELS_DIR".to_owned(), dir.path().display().to_string())];
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        let error = |name: &str| format!("{:#}", locate(&config, name).err().unwrap());
        assert!(error("smollm2").contains("`penstock pull smollm2:135m` fetches it"));
        assert!(error("smollm2:136m").contains("did you mean smollm2:135m?"));
        assert!(error("./gone.json").starts_with("./gone.json: no such file"));
        let file = dir.path().join("weights.bin");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(locate(&config, file.to_str().unwrap()).unwrap().path, file);
    }
}
