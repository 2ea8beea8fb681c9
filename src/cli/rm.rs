//! `penstock rm`: removes models from the store.

use std::path::Path;

use super::output::{human_bytes, print};
use crate::catalogue::{HubAdapter, LATEST, Store, models};
use crate::config::{Config, ModelEntry, Overrides, Source, find_model, nearest_model};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock rm smollm2:135m

Files of unfinished pulls are removed as well. Models made from the removed one stay, since they have links
to its files. A model that is a file of your own is never deleted.")]
pub struct RmArgs {
    /// Ids or aliases
    #[arg(required_unless_present = "adapters", value_name = "MODEL")]
    models: Vec<String>,
    /// Remove an adapter that was fetched from the hub; may be repeated
    #[arg(long = "adapter", value_name = "hf:OWNER/REPO[/PLACE][@REVISION]")]
    adapters: Vec<String>,
}

pub fn run(args: RmArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let store = Store::new(&config.server.models_dir);
    for name in &args.models {
        let models = models(&config, &store);
        let id = stored_id(&store, &models, name)?;
        let removed = match find_model(&models, &id) {
            Some(entry) => store.remove_entry(entry)?,
            None => store.remove(&id)?,
        };
        match removed {
            Some(freed) => print(&format!("{id} removed, {} freed\n", human_bytes(freed)))?,
            None => anyhow::bail!("`{id}` is not on disk"),
        }
    }
    for name in &args.adapters {
        match store.remove_adapter(&name.parse::<HubAdapter>().map_err(anyhow::Error::msg)?)? {
            true => print(&format!("{name} removed\n"))?,
            false => anyhow::bail!("`{name}` is not on disk"),
        }
    }
    Ok(())
}

/// The id in the store, either of a catalogue entry or of a stored model that is no longer in the catalogue.
fn stored_id(store: &Store, models: &[ModelEntry], name: &str) -> anyhow::Result<String> {
    let name = if find_model(models, name).is_some() { name } else { name.strip_suffix(LATEST).unwrap_or(name) };
    match find_model(models, name) {
        Some(ModelEntry { source: Source::File { path }, .. }) => {
            anyhow::bail!("`{name}` is a file of your own, not Penstock's to delete: {}", path.display())
        }
        Some(ModelEntry { of: Some(base), .. }) => anyhow::bail!("`{name}` is a variant, whose files are those of `{base}`: remove that"),
        Some(entry) => Ok(entry.id.clone()),
        None => match store.list().into_iter().find(|manifest| manifest.id == name) {
            Some(manifest) => Ok(manifest.id),
            None => {
                let near = nearest_model(models.iter().flat_map(ModelEntry::names), name);
                let hint = near.map_or(String::new(), |id| format!(" (did you mean {id}?)"));
                anyhow::bail!("there is no model `{name}` on disk or in the catalogue{hint}: `penstock list` shows them")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_models_of_the_store_can_be_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let surroundings = crate::config::ConfigSources { env, ..Default::default() };
        let mut models = Config::load_from(&surroundings, &Overrides::default()).unwrap().models;
        assert_eq!(stored_id(&store, &models, "smollm2").unwrap(), "smollm2:135m");
        models[0].source = Source::File { path: "/own.gguf".into() };
        assert!(stored_id(&store, &models, "smollm2").unwrap_err().to_string().contains("/own.gguf"));
        for name in ["../..", "", ".locks", "/"] {
            assert!(stored_id(&store, &models, name).unwrap_err().to_string().contains("no model"));
        }
    }
}
