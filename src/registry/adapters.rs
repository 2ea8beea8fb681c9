//! Served adapters: their numbers, the ones that a request gets, and those that are added while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::adapter_settings::{AdapterAsk, AdapterRef, AdapterSettings, ServedAdapter, refused};
use super::base::Base;
use super::error::RegistryError;
use super::registry::{Registry, lock};
use config::{AdapterEntry, Config, ModelEntry};
use serving::{ActiveAdapter, AdapterChoice, AdapterFault, BaseModel, MAX_ADAPTERS};

/// The most adapters that may be added while the server runs.
const MAX_ADDED: usize = 10_000;

impl Registry {
    /// The configuration with the adapters that were added since the start.
    pub(super) fn with_added(&self, config: &Config) -> Config {
        let mut config = config.clone();
        let known: Vec<AdapterEntry> = lock(&self.adapter_settings).added.clone();
        let is_new = |entry: &AdapterEntry| !config.adapters.iter().any(|other| other.answers_to(&entry.id));
        let added: Vec<AdapterEntry> = known.into_iter().filter(is_new).collect();
        config.adapters.extend(added);
        config
    }

    /// The most adapters that the engine of a loaded model holds at once.
    pub fn max_adapters(&self) -> usize {
        let of = |base: &Arc<Base>| Some(base.slot.peek()?.models.first()?.base.max_adapters);
        self.served().bases.iter().filter_map(of).max().unwrap_or(0)
    }

    /// The served adapters, in the order of their numbers.
    pub fn adapters(&self) -> Vec<ServedAdapter> {
        let (served, mut settings) = (self.served(), lock(&self.adapter_settings));
        let variants = served.bases.iter().flat_map(|base| base.variants.iter().map(move |variant| (base, variant)));
        let mut all: Vec<ServedAdapter> = variants
            .filter_map(|(base, variant)| {
                let adapter = variant.adapter.as_ref()?;
                let default = settings.defaults.iter().find(|(id, _)| *id == variant.id).map_or(0.0, |(_, scale)| *scale);
                Some(ServedAdapter {
                    number: settings.number(&variant.id),
                    id: variant.id.clone(),
                    path: adapter.path.clone(),
                    base: variant.parent().unwrap_or(base.id()).to_owned(),
                    scale: adapter.scale,
                    default_scale: default,
                })
            })
            .collect();
        all.sort_by_key(|adapter| adapter.number);
        all
    }

    /// The id of the served adapter that a request names.
    ///
    /// # Errors
    /// There is none.
    pub fn adapter_id(&self, which: &AdapterRef) -> Result<String, RegistryError> {
        let found = match which {
            AdapterRef::Number(number) => self.adapters().into_iter().find(|adapter| adapter.number == *number).map(|adapter| adapter.id),
            AdapterRef::Name(name) => {
                let served = self.served();
                let found = served.find(name).map(|(base, index)| &base.variants[index]).filter(|variant| variant.adapter.is_some());
                found.map(|variant| variant.id.clone())
            }
        };
        let named = || match which {
            AdapterRef::Number(number) => format!("the id {number}"),
            AdapterRef::Name(name) => format!("the name `{}`", name.chars().take(100).collect::<String>().escape_debug()),
        };
        found.ok_or_else(|| RegistryError::AdapterRefused(format!("no adapter has {}: GET /lora-adapters lists them", named())))
    }

    /// The adapters of a request to a name: those that the request asks for, or else that of the name, or else the model's defaults.
    ///
    /// # Errors
    /// An adapter is unknown, named twice or another model's, or there are too many.
    pub(super) fn choices(&self, found: &(Arc<Base>, usize), asked: Option<&[AdapterAsk]>) -> Result<Vec<AdapterChoice>, RegistryError> {
        let (base, variant) = (&found.0, &found.0.variants[found.1]);
        if let Some(asked) = asked {
            return self.asked(base, variant, asked);
        }
        if let Some(adapter) = &variant.adapter {
            return Ok(vec![AdapterChoice { name: variant.id.as_str().into(), path: adapter.path.clone(), scale: adapter.scale }]);
        }
        let defaults = lock(&self.adapter_settings).defaults.clone();
        Ok(defaults.iter().filter_map(|(id, scale)| choice(base, id, *scale)).filter(|choice| choice.scale != 0.0).collect())
    }

    fn asked(&self, base: &Base, variant: &ModelEntry, asked: &[AdapterAsk]) -> Result<Vec<AdapterChoice>, RegistryError> {
        if asked.len() > MAX_ADAPTERS {
            return refused(format!("{} adapters are too many for a request: at most {MAX_ADAPTERS} are allowed", asked.len()));
        }
        let mut choices: Vec<AdapterChoice> = Vec::with_capacity(asked.len());
        for AdapterAsk { which, scale } in asked {
            let id = self.adapter_id(which)?;
            if choices.iter().any(|choice| *choice.name == *id) {
                return refused(format!("the adapter `{id}` is named twice"));
            }
            let Some(choice) = choice(base, &id, *scale) else {
                return refused(format!("the adapter `{id}` does not belong to the weights of the model `{}`", variant.id));
            };
            choices.push(choice);
        }
        Ok(choices)
    }

    /// Sets the adapters of requests to models themselves that choose none. Adapters that are not named get a scale of 0.
    ///
    /// # Errors
    /// An adapter is unknown or named twice, or there are too many for one model. Nothing changes then.
    pub fn set_default_adapters(&self, asked: &[AdapterAsk]) -> Result<(), RegistryError> {
        let mut defaults: Vec<(String, f32)> = Vec::with_capacity(asked.len());
        for AdapterAsk { which, scale } in asked {
            let id = self.adapter_id(which)?;
            if defaults.iter().any(|(known, _)| *known == id) {
                return refused(format!("the adapter `{id}` is named twice"));
            }
            defaults.push((id, *scale));
        }
        defaults.retain(|(_, scale)| *scale != 0.0);
        for base in &self.served().bases {
            let of_base = defaults.iter().filter(|(id, _)| base.variant(id).is_some()).count();
            if of_base > MAX_ADAPTERS {
                return refused(format!("{of_base} adapters are too many for a request: at most {MAX_ADAPTERS} are allowed"));
            }
        }
        lock(&self.adapter_settings).defaults = defaults;
        Ok(())
    }

    /// The adapters, if all are in the host's memory. Never waits.
    pub(super) fn adapters_ready(&self, base: &BaseModel, choices: &[AdapterChoice]) -> Option<Arc<[ActiveAdapter]>> {
        check_number(base, choices).ok()?;
        self.adapters.ready(&base.weights, choices)
    }

    pub(super) async fn read_adapters(
        &self,
        base: &BaseModel,
        choices: &[AdapterChoice],
        deadline: Instant,
    ) -> Result<Arc<[ActiveAdapter]>, RegistryError> {
        check_number(base, choices)?;
        self.check_on_disk(choices)?;
        Ok(self.adapters.get(&base.weights, choices, deadline).await?)
    }

    pub(super) fn read_adapters_blocking(
        &self,
        base: &BaseModel,
        choices: &[AdapterChoice],
        deadline: Instant,
    ) -> Result<Arc<[ActiveAdapter]>, RegistryError> {
        check_number(base, choices)?;
        self.check_on_disk(choices)?;
        Ok(self.adapters.get_blocking(&base.weights, choices, deadline)?)
    }

    /// Checks that adapters of the hub have been fetched.
    fn check_on_disk(&self, choices: &[AdapterChoice]) -> Result<(), RegistryError> {
        let missing = choices.iter().find_map(|choice| Some((choice, self.store.missing_adapter(&choice.path)?)));
        missing.map_or(Ok(()), |(choice, from)| {
            Err(RegistryError::AdapterFailed(format!("`{}` is not on disk: `penstock pull --adapter {from}` fetches it", choice.name)))
        })
    }

    /// Serves the adapter in a file or a folder under a name, until the process ends. It is read now, so that nothing is listed that
    /// cannot be used. `of`: the model that it changes; None: the first one that is served. `in_place`: whether it may take the place of
    /// one that was added before. Blocks.
    ///
    /// # Errors
    /// The path is not below a permitted folder, the name belongs to another model, or the adapter cannot be used.
    pub fn add_adapter(self: &Arc<Self>, name: &str, path: &Path, of: Option<&str>, in_place: bool) -> Result<(), RegistryError> {
        let path = permitted(&self.settings().server.adapter_folders, path)?;
        let entry = AdapterEntry::new(name, of, path);
        entry.check().map_err(RegistryError::AdapterRefused)?;
        let is_added = |settings: &AdapterSettings| settings.added.iter().any(|other| other.id == name);
        match self.served().find(name) {
            Some(_) if !is_added(&lock(&self.adapter_settings)) => return refused(format!("the name `{name}` belongs to a served model")),
            Some(_) if !in_place => {
                return refused(format!("the adapter `{name}` is loaded already: set `load_inplace` to load it in its place"));
            }
            _ => {}
        }
        let first = self.named.read().unwrap_or_else(std::sync::PoisonError::into_inner).first().cloned();
        let of = of.map(str::to_owned).or(first).unwrap_or_default();
        let (base, index) = self.find_named(&of)?;
        let variant = &base.variants[index];
        if variant.adapter.is_some() {
            return refused(format!("the model `{}` has an adapter itself: name the model that it changes", variant.id));
        }
        let model = self.get(&variant.id)?;
        let choice = AdapterChoice { name: name.into(), path: entry.path.clone(), scale: entry.scale };
        self.read_adapters_blocking(&model.base, &[choice], self.deadline())?;
        {
            let mut settings = lock(&self.adapter_settings);
            settings.added.retain(|other| other.id != name);
            if settings.added.len() >= MAX_ADDED {
                return refused(format!("{MAX_ADDED} adapters were added, which is the most: unload some"));
            }
            settings.added.push(AdapterEntry { of: Some(variant.id.clone()), ..entry });
        }
        self.follow_store();
        Ok(())
    }

    /// Stops serving an adapter that was added. Requests that have it go on. Blocks.
    ///
    /// # Errors
    /// There is none, or the configuration has it.
    pub fn remove_adapter(&self, name: &str) -> Result<(), RegistryError> {
        {
            let mut settings = lock(&self.adapter_settings);
            let before = settings.added.len();
            settings.added.retain(|entry| entry.id != name);
            if settings.added.len() == before {
                drop(settings);
                let (base, index) = self.find(name)?;
                let what =
                    if base.variants[index].adapter.is_some() { "an adapter of the configuration or the store" } else { "no adapter" };
                return refused(format!("`{name}` is {what}: only adapters that were loaded by a request are unloaded"));
            }
            settings.defaults.retain(|(id, _)| id != name);
        }
        self.follow_store();
        Ok(())
    }

    /// Finds a served model by a name or by the path with which it was named at start.
    fn find_named(&self, name: &str) -> Result<(Arc<Base>, usize), RegistryError> {
        let served = self.served();
        served.find_named(name).map(|(base, index)| (base.clone(), index)).ok_or_else(|| self.not_found(name))
    }
}

/// The choice of an adapter over a base model. None if the adapter does not belong to it.
fn choice(base: &Base, id: &str, scale: f32) -> Option<AdapterChoice> {
    let variant = &base.variants[base.variant(id)?];
    let adapter = variant.adapter.as_ref()?;
    Some(AdapterChoice { name: variant.id.as_str().into(), path: adapter.path.clone(), scale })
}

fn check_number(base: &BaseModel, choices: &[AdapterChoice]) -> Result<(), RegistryError> {
    match (choices.len(), base.max_adapters) {
        (asked, most) if asked <= most => Ok(()),
        (_, 0) => refused(format!("the model runs on the backend {}, which takes no adapters", base.backend)),
        (asked, most) => refused(format!("{asked} adapters are too many for a request: the model's engine holds {most} at once")),
    }
}

/// The path without links, if it and the files in it are below one of the folders. A relative path begins at each of them.
fn permitted(folders: &[PathBuf], path: &Path) -> Result<PathBuf, RegistryError> {
    if folders.is_empty() {
        return refused("adapters are loaded by a path only below folders that server.adapter_folders lists, and it lists none");
    }
    let folders: Vec<PathBuf> = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
    let is_below = |path: &Path| folders.iter().any(|folder| path.starts_with(folder) && path != folder);
    let resolved = folders.iter().filter_map(|folder| folder.join(path).canonicalize().ok()).find(|path| is_below(path));
    let leads_out = |path: &Path| {
        let mut files = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        files.any(|file| file.canonicalize().is_ok_and(|file| !is_below(&file)))
    };
    match resolved.filter(|path| !leads_out(path)) {
        Some(path) => Ok(path),
        None => refused("the path does not exist, or is not below a folder of server.adapter_folders"),
    }
}

impl From<AdapterFault> for RegistryError {
    fn from(fault: AdapterFault) -> Self {
        match fault {
            AdapterFault::Unusable(cause) => Self::AdapterFailed(cause),
            AdapterFault::NoRoom(_) => Self::AdapterNoRoom(fault.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_path_must_lie_below_a_folder_once_links_are_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (inside, outside) = (root.join("inside"), root.join("outside"));
        for folder in [&inside, &outside, &inside.join("peft"), &inside.join("trap")] {
            std::fs::create_dir(folder).unwrap();
        }
        std::fs::write(inside.join("a.gguf"), "x").unwrap();
        std::fs::write(inside.join("peft/adapter_config.json"), "x").unwrap();
        std::fs::write(outside.join("b.gguf"), "x").unwrap();
        symlink(outside.join("b.gguf"), inside.join("link.gguf")).unwrap();
        symlink(outside.join("b.gguf"), inside.join("trap/adapter_model.safetensors")).unwrap();
        let folders = [inside.clone(), root.join("missing")];
        let ok = |path: &str| permitted(&folders, Path::new(path)).ok();
        assert_eq!(ok("a.gguf"), Some(inside.join("a.gguf")));
        assert_eq!(ok(&inside.join("peft").display().to_string()), Some(inside.join("peft")));
        for path in ["../outside/b.gguf", "link.gguf", "trap", "missing.gguf", ".", "/etc/passwd", "peft/../../outside/b.gguf"] {
            assert_eq!(ok(path), None, "{path}");
        }
        assert!(permitted(&[], Path::new("a.gguf")).unwrap_err().to_string().contains("it lists none"));
    }
}
