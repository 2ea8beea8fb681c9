//! Adapters of the Hugging Face hub in the store: `models_dir/.adapters/NAME/`, each with one GGUF file or PEFT's two files.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::adapter_files::{ADAPTER_FILE, PEFT_FILES};
use super::download::{self, Piece, Progress, PullError, Tools, refuse_link};
use super::store::{Store, fetch_piece};
use config::{AdapterEntry, ModelEntry, Source, check_entry};

const ADAPTERS: &str = ".adapters";

/// An adapter on the hub, as `hf:OWNER/REPO`, `hf:OWNER/REPO/FOLDER` or `hf:OWNER/REPO/FILE.gguf`, each with or without `@REVISION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubAdapter {
    /// The name as it was given.
    name: String,
    repo: String,
    /// A GGUF file, or a folder with PEFT's files. None: the repository's only adapter.
    place: Option<String>,
    revision: String,
}

/// An adapter that is on disk after a pull.
#[derive(Clone, Debug)]
pub struct PulledAdapter {
    pub path: PathBuf,
    /// The size of all files [bytes].
    pub size: u64,
}

impl FromStr for HubAdapter {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let form = || format!("`{name}` is not hf:OWNER/REPO, hf:OWNER/REPO/FOLDER or hf:OWNER/REPO/FILE.gguf");
        let rest = name.strip_prefix("hf:").ok_or_else(form)?;
        let (place, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let mut parts = place.splitn(3, '/');
        let (Some(owner), Some(repo), place) = (parts.next(), parts.next(), parts.next()) else { return Err(form()) };
        let repo = format!("{owner}/{repo}");
        // What enters a URL and a path is checked as a model's source is.
        let source = Source::Hf { repo: repo.clone(), file: place.map(str::to_owned), quant: None, revision: revision.to_owned() };
        check_entry(&ModelEntry::new("adapter", source)).map_err(|fault| format!("`{name}`: {fault}"))?;
        Ok(Self { name: name.to_owned(), repo, place: place.map(str::to_owned), revision: revision.to_owned() })
    }
}

impl HubAdapter {
    /// The files of the adapter among those of its repository, with their names in the store.
    fn pieces(&self, listed: &[download::HubFile]) -> Result<Vec<Piece>, String> {
        let piece = |file: &download::HubFile, name: &str| {
            let source =
                Source::Hf { repo: self.repo.clone(), file: Some(file.path.clone()), quant: None, revision: self.revision.clone() };
            Piece { name: name.to_owned(), source, sha256: file.sha256.clone(), size: Some(file.size) }
        };
        let find = |path: &str| listed.iter().find(|file| file.path == path);
        let is_gguf = |path: &str| path.to_ascii_lowercase().ends_with(".gguf");
        if let Some(place) = self.place.as_deref().filter(|place| is_gguf(place)) {
            return match find(place) {
                Some(file) => Ok(vec![piece(file, ADAPTER_FILE)]),
                None => Err(format!("{place} is not in the repository")),
            };
        }
        let within = |name: &str| self.place.as_ref().map_or_else(|| name.to_owned(), |folder| format!("{folder}/{name}"));
        let folder: Option<Vec<Piece>> = PEFT_FILES.iter().map(|name| Some(piece(find(&within(name))?, name))).collect();
        if let Some(folder) = folder {
            return Ok(folder);
        }
        let files: Vec<_> = listed.iter().filter(|file| self.place.is_none() && is_gguf(&file.path)).collect();
        match files[..] {
            [file] => Ok(vec![piece(file, ADAPTER_FILE)]),
            [] => Err(format!("it holds neither {} nor a GGUF file", PEFT_FILES.map(within).join(" and "))),
            _ => Err("it holds several GGUF files: name one of them".into()),
        }
    }
}

impl Store {
    fn adapter_dir(&self, adapter: &HubAdapter) -> PathBuf {
        self.dir_below(&self.adapters_dir(), &adapter.name)
    }

    /// The path at which an adapter is read: that of its entry, or that in the store if the entry names the hub.
    pub fn adapter_path(&self, path: &Path) -> PathBuf {
        let Some(adapter) = path.to_str().and_then(|name| name.parse::<HubAdapter>().ok()) else { return path.to_owned() };
        let dir = self.adapter_dir(&adapter);
        let file = dir.join(ADAPTER_FILE);
        if file.is_file() { file } else { dir }
    }

    /// The entry of an adapter over `base`, with the path at which it is read.
    pub fn adapter_over(&self, adapter: &AdapterEntry, base: &ModelEntry) -> ModelEntry {
        AdapterEntry { path: self.adapter_path(&adapter.path), ..adapter.clone() }.over(base)
    }

    /// Fetches an adapter. Files that are on disk are verified, where the hub tells their digests. Blocks.
    ///
    /// # Errors
    /// The repository holds no adapter, or as for a model.
    pub fn pull_adapter(&self, adapter: &HubAdapter, tools: &Tools, progress: &Progress) -> Result<PulledAdapter, PullError> {
        let listed = download::list_repository(&adapter.repo, &adapter.revision, tools, progress)?;
        let pieces = adapter.pieces(&listed).map_err(|fault| PullError::Refused(format!("hf {}: {fault}", adapter.repo)))?;
        let _lock = self.lock(&adapter.name, Some(progress))?;
        let dir = self.adapter_dir(adapter);
        let fault = |error| PullError::disk(&dir, error);
        for folder in [&self.adapters_dir(), &dir] {
            refuse_link(folder).and_then(|()| std::fs::create_dir_all(folder)).map_err(fault)?;
        }
        let mut size = 0;
        for piece in &pieces {
            size += fetch_piece(&dir, piece, tools, progress)?.size;
        }
        Ok(PulledAdapter { path: self.adapter_path(Path::new(&adapter.name)), size })
    }

    /// Deletes an adapter that was fetched. Returns whether it was on disk.
    ///
    /// # Errors
    /// Its files cannot be deleted.
    pub fn remove_adapter(&self, adapter: &HubAdapter) -> Result<bool, PullError> {
        let dir = self.adapter_dir(adapter);
        let fault = |error| PullError::disk(&dir, error);
        refuse_link(&dir).map_err(fault)?;
        if !dir.is_dir() {
            return Ok(false);
        }
        let _lock = self.lock(&adapter.name, None)?;
        std::fs::remove_dir_all(&dir).map_err(fault)?;
        Ok(true)
    }

    /// The name of the adapter that belongs at a path of the store and is not there.
    pub fn missing_adapter(&self, path: &Path) -> Option<String> {
        let name = path.strip_prefix(self.adapters_dir()).ok()?.iter().next()?.to_str()?;
        (!path.exists()).then(|| name.replace('+', ":").replace('=', "/"))
    }

    fn adapters_dir(&self) -> PathBuf {
        self.root.join(ADAPTERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(name: &str, paths: &[&str]) -> Result<Vec<(String, String)>, String> {
        let page: Vec<_> = paths.iter().map(|path| serde_json::json!({"type": "file", "path": path, "size": 1})).collect();
        let listed = download::files_of(&serde_json::to_string(&page).unwrap()).unwrap();
        let file = |piece: Piece| match piece.source {
            Source::Hf { file: Some(file), .. } => (piece.name, file),
            other => panic!("{other:?}"),
        };
        Ok(name.parse::<HubAdapter>()?.pieces(&listed)?.into_iter().map(file).collect())
    }

    #[test]
    fn the_files_of_an_adapter_are_found_in_its_repository() {
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let peft =
            ["README.md", "adapter_config.json", "adapter_model.safetensors", "x/adapter_config.json", "x/adapter_model.safetensors"];
        let [config, model] = PEFT_FILES;
        assert_eq!(pieces("hf:o/r", &peft).unwrap(), [pair(config, config), pair(model, model)]);
        let within = [pair(config, "x/adapter_config.json"), pair(model, "x/adapter_model.safetensors")];
        assert_eq!(pieces("hf:o/r/x@v2", &peft).unwrap(), within);
        assert_eq!(pieces("hf:o/r", &["a-lora.gguf", "README.md"]).unwrap(), [pair(ADAPTER_FILE, "a-lora.gguf")]);
        let several = ["a.gguf", "b.gguf"];
        assert_eq!(pieces("hf:o/r/b.gguf", &several).unwrap(), [pair(ADAPTER_FILE, "b.gguf")]);
        assert!(pieces("hf:o/r", &several).unwrap_err().contains("name one"));
        assert!(pieces("hf:o/r", &["model.safetensors"]).unwrap_err().contains("adapter_config.json"));
        assert!(pieces("hf:o/r/c.gguf", &several).unwrap_err().contains("not in the repository"));
        for bad in ["o/r", "hf:o", "hf:o/..", "hf:o/r/../x", "hf:o/r@..", "hf:o r/x"] {
            assert!(bad.parse::<HubAdapter>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_of_the_hub_leads_to_the_store_and_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path());
        let (name, own) = (Path::new("hf:o/r/x@v2"), Path::new("own/adapter.gguf"));
        assert_eq!((store.adapter_path(own), store.missing_adapter(own)), (own.to_owned(), None));
        let path = store.adapter_path(name);
        assert!(path.starts_with(dir.path()) && store.missing_adapter(&path).as_deref() == Some("hf:o/r/x@v2"), "{path:?}");
        std::fs::create_dir_all(&path).unwrap();
        assert_eq!(store.missing_adapter(&path), None);
        std::fs::write(path.join(ADAPTER_FILE), "x").unwrap();
        assert_eq!(store.adapter_path(name), path.join(ADAPTER_FILE));
        assert!(store.remove_adapter(&"hf:o/r/x@v2".parse().unwrap()).unwrap() && !path.exists());
        assert!(!store.remove_adapter(&"hf:o/r/x@v2".parse().unwrap()).unwrap());
    }
}
