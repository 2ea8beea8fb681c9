//! The entries of `[[models]]`, merged by id over all layers.

use config_rs::Value;

use super::check_entry::{check_entry, check_weights};
use super::entry::{ModelEntry, find_model};
use super::error::ConfigError;
use super::validate::plain;

/// Name of the layer that holds the built-in catalogue.
pub(super) const BUILT_IN: &str = "built-in catalogue";

/// The entries so far, each with the name of its layer.
#[derive(Default)]
pub(super) struct Models(Vec<(String, ModelEntry)>);

impl Models {
    /// Adds a layer's entries. An entry with a known id replaces the earlier one.
    pub(super) fn add_layer(&mut self, origin: &str, value: Value) -> Result<(), ConfigError> {
        let bad = |key: String, fault: String| ConfigError::BadValue { origin: origin.into(), key, fault };
        let entries = value.into_array().map_err(|_| bad("models".into(), "expected an array of tables ([[models]])".into()))?;
        let mut of_this_layer: Vec<String> = Vec::new();
        for (index, value) in entries.into_iter().enumerate() {
            let named = value.clone().into_table().ok().and_then(|table| table.get("id")?.clone().into_string().ok());
            let name = named.map_or_else(|| format!("models[{index}]"), |id| format!("models[{index}] ({id})"));
            let mut entry: ModelEntry = value.try_deserialize().map_err(|error| bad(name, plain(error)))?;
            let is_new = |name: &String| !entry.aliases.contains(name);
            let earlier: Vec<String> = entry.former.iter().filter(|name| is_new(name)).cloned().collect();
            entry.aliases.extend(earlier);
            entry.built_in = origin == BUILT_IN;
            entry.sha256 = entry.sha256.map(|digest| digest.to_ascii_lowercase());
            check_weights(&entry).and_then(|()| check_entry(&entry)).map_err(|fault| ConfigError::Model {
                origin: origin.into(),
                id: entry.id.clone(),
                fault,
            })?;
            if of_this_layer.contains(&entry.id) {
                return Err(ConfigError::Model {
                    origin: origin.into(),
                    id: entry.id,
                    fault: "the file has two entries with this id".into(),
                });
            }
            of_this_layer.push(entry.id.clone());
            // A user's entry may still have an id that the built-in catalogue has changed since.
            match self.0.iter_mut().find(|(_, known)| known.id == entry.id || known.former.contains(&entry.id)) {
                Some(known) => *known = (origin.into(), entry),
                None => self.0.push((origin.into(), entry)),
            }
        }
        Ok(())
    }

    /// Finishes the catalogue.
    ///
    /// # Errors
    /// Two models share an id or alias, or a variant's base model does not exist.
    pub(super) fn finish(mut self) -> Result<Vec<ModelEntry>, ConfigError> {
        self.check_names()?;
        self.place_variants()?;
        Ok(self.0.into_iter().map(|(_, entry)| entry).collect())
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        let mut names: std::collections::HashMap<&str, (&str, &str)> = Default::default();
        for (origin, entry) in &self.0 {
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                if let Some((other, at)) = names.insert(name, (&entry.id, origin)) {
                    let fault = format!("the name `{name}` also belongs to `{other}` ({at})");
                    return Err(ConfigError::Model { origin: origin.clone(), id: entry.id.clone(), fault });
                }
            }
        }
        Ok(())
    }

    /// Fills in the fields of each variant that describe its weights.
    fn place_variants(&mut self) -> Result<(), ConfigError> {
        let bases: Vec<ModelEntry> = self.0.iter().map(|(_, entry)| entry.clone()).collect();
        for (origin, entry) in &mut self.0 {
            let Some(name) = entry.of.clone() else { continue };
            let fault = |fault: String| ConfigError::Model { origin: origin.clone(), id: entry.id.clone(), fault };
            let base = find_model(&bases, &name).ok_or_else(|| fault(format!("`of`: there is no model `{name}`")))?;
            if base.of.is_some() {
                return Err(fault(format!("`of`: `{name}` is a variant itself: name the model that it stands on")));
            }
            entry.stand_on(base);
        }
        Ok(())
    }
}
