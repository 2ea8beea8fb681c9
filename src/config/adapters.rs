//! Adapters (`[[adapters]]` and `--adapter`): names that add the changes of a file to the weights of another model.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::check_name::check_name;
use super::entry::ModelEntry;
use super::named_adapter::NamedAdapter;

/// The largest factor of an adapter, either way.
const MAX_SCALE: f32 = 1000.0;

/// An entry of `[[adapters]]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterEntry {
    pub id: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The id or alias of the model whose weights it changes. None: the first served model.
    #[serde(default)]
    pub of: Option<String>,
    /// A GGUF file, or a folder with `adapter_config.json` and `adapter_model.safetensors`; or `hf:OWNER/REPO`, `hf:OWNER/REPO/FOLDER` or
    /// `hf:OWNER/REPO/FILE.gguf`, each with or without `@REVISION`, once it is in the store.
    pub path: PathBuf,
    /// The factor of its changes, for requests that do not choose.
    #[serde(default = "one")]
    pub scale: f32,
    /// Whether to read the adapter at start, with its model, rather than at its first request.
    #[serde(default)]
    pub eager: bool,
}

const fn one() -> f32 {
    1.0
}

impl AdapterEntry {
    /// An entry without optional fields.
    pub fn new(id: &str, of: Option<&str>, path: PathBuf) -> Self {
        Self { id: id.to_owned(), aliases: Vec::new(), of: of.map(str::to_owned), path, scale: one(), eager: false }
    }

    /// Checks an entry on its own.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self) -> Result<(), String> {
        std::iter::once(&self.id).chain(&self.aliases).try_for_each(|name| check_name(name))?;
        if self.of.as_ref().is_some_and(String::is_empty) {
            return Err("of is empty: name a model, or leave it out for the first served one".into());
        }
        check_scale(self.scale)?;
        let path = self.path.to_str().unwrap_or_default();
        match path {
            "" => Err("path is empty".into()),
            _ if path.contains("://") => Err(format!(
                "path {path:?}: addresses are not fetched: name a file, a folder or hf:OWNER/REPO, or download it and name its path"
            )),
            _ => Ok(()),
        }
    }

    /// The entry of the catalogue: a name over the weights of `base`, with its settings.
    pub fn over(&self, base: &ModelEntry) -> ModelEntry {
        ModelEntry {
            id: self.id.clone(),
            aliases: self.aliases.clone(),
            of: Some(base.stored_as().to_owned()),
            adapter: Some(NamedAdapter { path: self.path.clone(), scale: self.scale }),
            eager: self.eager,
            pinned: false,
            built_in: false,
            ..base.clone()
        }
    }

    /// Whether the entry has a name.
    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// Checks the factor of an adapter.
///
/// # Errors
/// It is not finite, or beyond 1000.
pub fn check_scale(scale: f32) -> Result<(), String> {
    match scale.abs() <= MAX_SCALE {
        true => Ok(()),
        false => Err(format!("scale is {scale}, expected a number from -{MAX_SCALE} to {MAX_SCALE}")),
    }
}

/// The value of `--adapter`: `NAME=PATH` or `NAME@BASE=PATH`.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFlag(pub AdapterEntry);

impl FromStr for AdapterFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("must have the form NAME=PATH or NAME@BASE=PATH")?;
        let (name, base) = name.split_once('@').map_or((name, None), |(name, base)| (name, Some(base)));
        let entry = AdapterEntry { eager: true, ..AdapterEntry::new(name, base, path.into()) };
        entry.check()?;
        Ok(Self(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_names_an_adapter_and_its_base() {
        let read = |text: &str| text.parse::<AdapterFlag>().map(|AdapterFlag(entry)| (entry.id, entry.of, entry.path, entry.eager));
        assert_eq!(read("a=x.gguf"), Ok(("a".into(), None, "x.gguf".into(), true)));
        assert_eq!(read("a@smollm2:135m=d/x=y"), Ok(("a".into(), Some("smollm2:135m".into()), "d/x=y".into(), true)));
        for (wrong, words) in [
            ("x.gguf", "NAME=PATH"),
            ("=x", "the name"),
            ("a=", "path is empty"),
            ("a@=x", "of is empty"),
            ("a=https://o/r", "not fetched"),
        ] {
            assert!(read(wrong).unwrap_err().contains(words), "{wrong}");
        }
    }

    #[test]
    fn scales_are_finite_and_bounded() {
        assert!([0.0, -1.5, 1000.0].into_iter().all(|scale| check_scale(scale).is_ok()));
        assert!([f32::NAN, f32::INFINITY, 1001.0].into_iter().all(|scale| check_scale(scale).is_err()));
    }
}
