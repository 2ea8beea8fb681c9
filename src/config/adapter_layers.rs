//! The entries of `[[adapters]]` of all layers of the configuration.

use config_rs::Value;

use super::adapters::AdapterEntry;
use super::entry::{ModelEntry, find_model};
use super::error::ConfigError;
use super::validate::plain;

/// The entries so far, each with the name of its layer.
#[derive(Default)]
pub(super) struct Adapters(Vec<(String, AdapterEntry)>);

impl Adapters {
    /// Adds a layer's entries. An entry with a known id replaces the earlier one.
    pub(super) fn add_layer(&mut self, origin: &str, value: Value) -> Result<(), ConfigError> {
        let bad = |key: String, fault: String| ConfigError::BadValue { origin: origin.into(), key, fault };
        let entries = value.into_array().map_err(|_| bad("adapters".into(), "expected an array of tables ([[adapters]])".into()))?;
        let mut of_this_layer = Vec::new();
        for (index, value) in entries.into_iter().enumerate() {
            let named = value.clone().into_table().ok().and_then(|table| table.get("id")?.clone().into_string().ok());
            let name = named.map_or_else(|| format!("adapters[{index}]"), |id| format!("adapters[{index}] ({id})"));
            let entry: AdapterEntry = value.try_deserialize().map_err(|error| bad(name, plain(error)))?;
            of_this_layer.push(entry);
        }
        self.add(origin, of_this_layer)
    }

    /// Adds the entries of one layer.
    pub(super) fn add(&mut self, origin: &str, entries: Vec<AdapterEntry>) -> Result<(), ConfigError> {
        for (index, entry) in entries.iter().enumerate() {
            let refused = |fault: String| ConfigError::Adapter { origin: origin.into(), id: entry.id.clone(), fault };
            entry.check().map_err(refused)?;
            if entries[..index].iter().any(|other| other.id == entry.id) {
                return Err(refused("two adapters have this id".into()));
            }
        }
        for entry in entries {
            match self.0.iter_mut().find(|(_, known)| known.id == entry.id) {
                Some(known) => *known = (origin.into(), entry),
                None => self.0.push((origin.into(), entry)),
            }
        }
        Ok(())
    }

    /// Finishes the list.
    ///
    /// # Errors
    /// A name belongs to a model or to another adapter, or is that of its own base.
    pub(super) fn finish(self, models: &[ModelEntry]) -> Result<Vec<AdapterEntry>, ConfigError> {
        for (index, (origin, entry)) in self.0.iter().enumerate() {
            let refused = |fault: String| Err(ConfigError::Adapter { origin: origin.clone(), id: entry.id.clone(), fault });
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                if let Some(model) = find_model(models, name) {
                    return refused(format!("the name `{name}` also belongs to the model `{}`", model.id));
                }
                if let Some((at, other)) = self.0[..index].iter().find(|(_, other)| other.answers_to(name)) {
                    return refused(format!("the name `{name}` also belongs to the adapter `{}` ({at})", other.id));
                }
            }
            if let Some((_, other)) = entry.of.as_ref().and_then(|of| self.0.iter().find(|(_, other)| other.answers_to(of))) {
                return refused(format!("`of`: `{}` is an adapter itself: name the model that it changes", other.id));
            }
        }
        Ok(self.0.into_iter().map(|(_, entry)| entry).collect())
    }
}
