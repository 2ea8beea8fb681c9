//! Models that were made on this machine: variants of other models, and files that were put into the store.
//!
//! A made model's directory holds links to its files, so that the files take no space of their own and outlive the model that they came
//! from. The directory is filled under another name and renamed, so that a model is either there or not.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use sha2::{Digest, Sha256};

use super::adapter_files::{adapter_at, adapter_in, is_adapter_file};
use super::beside;
use super::download::{MMPROJ, PullError, hex, refuse_link, write_own};
use super::manifest::{Manifest, Part, StoredMmproj};
use super::new_file::NewFile;
use super::store::{MANIFEST, Store, sync_folder, write_atomically};
use config::{Mmproj, ModelEntry, NamedAdapter, Source, StoredTemplate, StoredVariant};

/// The beginnings of the names of what is being made, written or replaced. No model's directory begins with a dot.
pub(super) const UNFINISHED: [&str; 3] = [NEW, SCRATCH, OLD];
const NEW: &str = ".new-";
const SCRATCH: &str = ".scratch-";
const OLD: &str = ".old-";

/// A directory that is removed unless it gets its name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Nothing else can be done about it here. The next attempt removes it first.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Store {
    /// The entry of a stored model.
    pub fn entry(&self, manifest: &Manifest) -> ModelEntry {
        let plain = ModelEntry {
            sha256: Some(manifest.sha256.clone()),
            size: Some(manifest.size),
            ..ModelEntry::new(&manifest.id, manifest.source.clone())
        };
        let Some(made) = &manifest.made else { return plain };
        let template =
            made.template.as_ref().filter(|template| Path::new(&template.file).file_name().is_some_and(|name| name == &*template.file));
        ModelEntry {
            sampling: made.sampling(),
            max_tokens: made.max_tokens(),
            system: made.system.clone(),
            chat_template: template.map(|template| self.dir(&manifest.id).join(&template.file)),
            base: made.base,
            reasoning_effort: made.reasoning_effort.clone(),
            chat_template_kwargs: made.variables.clone().into_iter().collect(),
            adapter: made
                .adapter
                .as_ref()
                .map(|adapter| NamedAdapter { path: adapter_in(&self.dir(&manifest.id), adapter), scale: adapter.scale }),
            made: Some(Arc::new(made.clone())),
            ..plain
        }
    }

    /// The entries of all models that were made on this machine.
    pub fn made(&self) -> Vec<ModelEntry> {
        self.list().iter().filter(|manifest| manifest.source == Source::Stored).map(|manifest| self.entry(manifest)).collect()
    }

    /// The files of an entry's model and its adapter, with their digests. A user's own files are hashed, which takes a while.
    ///
    /// # Errors
    /// The model is not on disk, or its file cannot be read.
    pub fn files_of(&self, entry: &ModelEntry) -> Result<Vec<NewFile>, PullError> {
        let new = |path: PathBuf, name: &str, sha256: &str, size: u64| NewFile {
            path,
            name: name.into(),
            sha256: sha256.into(),
            size,
            moves: false,
        };
        let mut files = match &entry.source {
            Source::File { path } => Self::weights_at(path)?,
            _ => {
                let manifest = self.find(entry).ok_or_else(|| PullError::Refused(self.why_missing(entry)))?;
                let dir = self.dir(&manifest.id);
                manifest.files().into_iter().map(|(name, sha256, size)| new(dir.join(name), name, sha256, size)).collect()
            }
        };
        let mmproj = match (&entry.mmproj, &entry.source) {
            (None, Source::File { path }) => beside::only_mmproj(path),
            (named, _) => named.as_ref().and_then(Mmproj::path).map(Path::to_owned).or_else(|| self.mmproj(entry)),
        };
        files.extend(mmproj.map(|path| mmproj_at(&path)).transpose()?);
        if let Some(adapter) = &entry.adapter {
            files.extend(adapter_at(&adapter.path)?);
        }
        Ok(files)
    }

    /// The model at a path with its picture encoder, with their digests.
    pub fn files_at(path: &Path) -> Result<Vec<NewFile>, PullError> {
        let mut files = Self::weights_at(path)?;
        files.extend(beside::only_mmproj(path).map(|path| mmproj_at(&path)).transpose()?);
        Ok(files)
    }

    /// The file at a path, or all files of the split model that it begins, with their digests.
    pub fn weights_at(path: &Path) -> Result<Vec<NewFile>, PullError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = gguf::PartName::parse(Path::new(&*name)).filter(|part| part.count > 1);
        let count = parts.as_ref().map_or(1, |part| part.count);
        let file = |no: usize| {
            let place = parts.as_ref().map_or_else(|| path.to_owned(), |part| part.sibling(path, no));
            let fault = |error| PullError::disk(&place, error);
            let size = outside::check_regular(&place).map_err(fault)?.len();
            let sha256 = super::download::sha256_of(&place).map_err(fault)?;
            let name = if count > 1 { format!("model-{no:05}-of-{count:05}.gguf") } else { super::download::MODEL.to_owned() };
            Ok(NewFile { path: place, name, sha256, size, moves: false })
        };
        (1..=count).map(file).collect()
    }

    /// Puts a model into the store under a name, in the place of one that was made before. `template`: its chat template in Jinja.
    ///
    /// # Errors
    /// The name belongs to a model that was fetched, or the disk refuses.
    pub fn put(
        &self,
        id: &str,
        files: &[NewFile],
        mut made: StoredVariant,
        template: Option<(&str, String)>,
    ) -> Result<Manifest, PullError> {
        config::check_made_name(id).and_then(|()| made.check()).map_err(PullError::Refused)?;
        std::fs::create_dir_all(&self.root).map_err(|error| PullError::disk(&self.root, error))?;
        let (dir, fresh) = (self.dir(id), self.beside(id, NEW));
        let _lock = self.lock(id, None)?;
        self.check_replaceable(id)?;
        refuse_link(&fresh)
            .and_then(|()| absent(&fresh))
            .and_then(|()| std::fs::create_dir(&fresh))
            .map_err(|error| PullError::disk(&fresh, error))?;
        let _unfinished = Unfinished(fresh.clone());
        for file in files {
            if let Some(folder) = Path::new(&file.name).parent().filter(|folder| !folder.as_os_str().is_empty()) {
                std::fs::create_dir_all(fresh.join(folder)).map_err(|error| PullError::disk(&fresh, error))?;
            }
            place(file, &fresh.join(&file.name)).map_err(|error| PullError::disk(&file.path, error))?;
        }
        made.template = None;
        if let Some((jinja, source)) = template {
            // The name changes with the text, so that nobody mistakes another template for the one that he has read.
            let file = format!("template-{}.jinja", &hex(&Sha256::digest(jinja))[..16]);
            let path = fresh.join(&file);
            write_own(&path, jinja.as_bytes()).and_then(|file| file.sync_all()).map_err(|error| PullError::disk(&path, error))?;
            made.template = Some(StoredTemplate { file, source });
        }
        let own = files.iter().filter(|file| !is_adapter_file(&file.name));
        let (mmproj, weights): (Vec<&NewFile>, Vec<&NewFile>) = own.partition(|file| file.name == MMPROJ);
        let parts = weights.iter().map(|file| Part { name: file.name.clone(), sha256: file.sha256.clone(), size: file.size }).collect();
        let stored = |file: &&NewFile| StoredMmproj { source: Source::Stored, sha256: file.sha256.clone(), size: file.size };
        let manifest =
            Manifest { made: Some(made), mmproj: mmproj.first().map(stored), ..Manifest::new(&ModelEntry::new(id, Source::Stored), parts) };
        let (path, text) = (fresh.join(MANIFEST), serde_json::to_vec_pretty(&manifest).expect("plain data"));
        write_atomically(&path, &path.with_extension("tmp"), &text).map_err(|error| PullError::disk(&path, error))?;
        self.exchange(id, &fresh).map_err(|error| PullError::disk(&dir, error))?;
        Ok(manifest)
    }

    /// Checks that a name is free, or that of a model that was made before.
    pub fn check_replaceable(&self, id: &str) -> Result<(), PullError> {
        let dir = self.dir(id);
        refuse_link(&dir).map_err(|error| PullError::disk(&dir, error))?;
        match self.manifest(&dir) {
            Some(manifest) if manifest.source == Source::Stored => Ok(()),
            None if !dir.exists() || !self.holds_download(&dir) => Ok(()),
            _ => Err(PullError::Refused(format!(
                "the name `{id}` belongs to a model that is fetched: choose another name, or delete that model"
            ))),
        }
    }

    /// Whether a directory without a manifest holds a part of a download.
    fn holds_download(&self, dir: &Path) -> bool {
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().contains(super::download::PARTIAL))
    }

    /// A path next to a model's directory.
    fn beside(&self, id: &str, prefix: &str) -> PathBuf {
        let mut name = OsString::from(prefix);
        name.push(self.dir(id).file_name().unwrap_or_default());
        self.root.join(name)
    }

    /// A path for a file in the making, in the file system of the store.
    pub fn scratch(&self, id: &str) -> std::io::Result<PathBuf> {
        std::fs::create_dir_all(&self.root)?;
        let mut path = self.beside(id, SCRATCH).into_os_string();
        path.push(".gguf");
        Ok(path.into())
    }

    /// Gives a directory the name of a model, and removes the one that had it. Whoever looks finds one of them, if the file system can
    /// exchange names.
    fn exchange(&self, id: &str, fresh: &Path) -> std::io::Result<()> {
        let (dir, old) = (self.dir(id), self.beside(id, OLD));
        absent(&old)?;
        if renameat2(AT_FDCWD, fresh, AT_FDCWD, &dir, RenameFlags::RENAME_EXCHANGE).is_ok() {
            sync_folder(&self.root)?;
            return absent(fresh);
        }
        let had = match std::fs::rename(&dir, &old) {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            renamed => renamed.map(|()| true)?,
        };
        if let Err(error) = std::fs::rename(fresh, &dir) {
            if had {
                std::fs::rename(&old, &dir)?;
            }
            return Err(error);
        }
        sync_folder(&self.root)?;
        absent(&old)
    }
}

/// The picture encoder at a path, with its digest.
fn mmproj_at(path: &Path) -> Result<NewFile, PullError> {
    let fault = |error| PullError::disk(path, error);
    let size = outside::check_regular(path).map_err(fault)?.len();
    let sha256 = super::download::sha256_of(path).map_err(fault)?;
    Ok(NewFile { path: path.to_owned(), name: MMPROJ.to_owned(), sha256, size, moves: false })
}

/// Removes a directory if it exists.
fn absent(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Links or moves a file to its place. A file on another file system, or one that the system does not let us link, gets a symbolic link.
fn place(file: &NewFile, at: &Path) -> std::io::Result<()> {
    if file.moves {
        return std::fs::rename(&file.path, at);
    }
    // The link leads to the file itself, whatever becomes of links to it.
    let target = std::fs::canonicalize(&file.path)?;
    std::fs::hard_link(&target, at).or_else(|_| std::os::unix::fs::symlink(&target, at))
}

#[cfg(test)]
#[path = "made_tests.rs"]
mod tests;
