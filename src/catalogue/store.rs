//! The models on disk: `models_dir/NAME/model.gguf` (or `model-00001-of-0000N.gguf` and so on) with a `manifest.json`. A directory counts
//! as a model only if it has both. The manifest is written last, so that an unfinished download never counts.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::download::{
    self, MMPROJ, MODEL, PARTIAL, Partial, Piece, Pieces, Progress, PullError, Tools, open_own, refuse_link, sha256_of, write_own,
};
use super::manifest::{Manifest, Part, StoredMmproj};
use config::{ModelEntry, Source};

pub(super) const MANIFEST: &str = "manifest.json";
/// Far above any real manifest. [bytes]
const MAX_MANIFEST: u64 = 16 << 20;
const LOCKS: &str = ".locks";

/// A model that is on disk after a pull.
#[derive(Clone, Debug)]
pub struct PulledModel {
    pub path: PathBuf,
    pub sha256: String,
    pub size: u64,
    /// Whether files were fetched. False if the model was already on disk with the right digests.
    pub fetched: bool,
}

/// How much of a model is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    No,
    /// A part, from which a pull would continue [bytes].
    Partial(u64),
    Yes,
}

/// The directory of downloaded models.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) root: PathBuf,
}

/// Held while a model's files change. The operating system releases it when the process ends, even after a crash.
pub(super) struct Lock(#[allow(dead_code, reason = "dropping the file releases the lock")] File);

impl Store {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A model's directory. `:` and `/` become `+` and `=`, which no id contains, so that no two ids share a directory.
    pub(super) fn dir(&self, id: &str) -> PathBuf {
        self.dir_below(&self.root, id)
    }

    pub(super) fn dir_below(&self, folder: &Path, id: &str) -> PathBuf {
        folder.join(id.replace(':', "+").replace('/', "="))
    }

    /// The path of a model's file, or of its first file if the model is split.
    pub fn file(&self, manifest: &Manifest) -> PathBuf {
        self.dir(&manifest.id).join(manifest.files()[0].0)
    }

    pub(super) fn manifest(&self, dir: &Path) -> Option<Manifest> {
        let identity = || dir.metadata().map(|meta| meta.ino()).ok();
        loop {
            let before = identity();
            let found = self.manifest_now(dir);
            // A model that is replaced meanwhile seems to lack files.
            if found.is_some() || identity() == before {
                return found;
            }
        }
    }

    fn manifest_now(&self, dir: &Path) -> Option<Manifest> {
        let manifest: Manifest = serde_json::from_slice(&outside::read_regular(&dir.join(MANIFEST), MAX_MANIFEST).ok()?).ok()?;
        let plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
        let is_there = |&(name, _, size): &(&str, &str, u64)| {
            plain(name) && std::fs::metadata(dir.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == size)
        };
        let whole = self.dir(&manifest.id) == dir && manifest.files().iter().all(is_there);
        whole.then_some(manifest)
    }

    /// The manifest of an entry's model, if the model is complete on disk and is the one that the entry describes.
    pub fn find(&self, entry: &ModelEntry) -> Option<Manifest> {
        let is_it = |manifest: &Manifest| match &entry.sha256 {
            Some(digest) => *digest == manifest.sha256,
            None => manifest.source == entry.source,
        };
        entry.stored_under().find_map(|id| self.manifest(&self.dir(id)).filter(is_it))
    }

    /// The picture encoder that was fetched with an entry's model, or linked to it. None if the entry names another one.
    pub fn mmproj(&self, entry: &ModelEntry) -> Option<PathBuf> {
        let manifest = self.find(entry)?;
        let stored = manifest.mmproj.as_ref().filter(|stored| is_meant(stored, entry))?;
        let path = self.dir(&manifest.id).join(MMPROJ);
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == stored.size).then_some(path)
    }

    /// Whether an entry names a picture encoder that is still to be fetched.
    pub fn lacks_mmproj(&self, entry: &ModelEntry) -> bool {
        entry.mmproj.as_ref().is_some_and(|mmproj| mmproj.fetched().is_some()) && self.mmproj(entry).is_none()
    }

    /// The file to open for an entry's model, if the model is on disk.
    pub fn path(&self, entry: &ModelEntry) -> Option<PathBuf> {
        match &entry.source {
            Source::File { path } => path.is_file().then(|| path.clone()),
            _ => self.find(entry).map(|manifest| self.file(&manifest)),
        }
    }

    /// Why there is no file to open for an entry's model, and what to do.
    pub fn why_missing(&self, entry: &ModelEntry) -> String {
        match &entry.source {
            Source::File { path } => match outside::check_regular(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => format!("{}: {error}", path.display()),
                _ => format!("{}: no such file", path.display()),
            },
            Source::Stored => format!("its files are gone from the store: `penstock rm {}` removes the rest", entry.id),
            _ => format!("it is not on disk: `penstock pull {}` fetches it", entry.stored_as()),
        }
    }

    pub fn presence(&self, entry: &ModelEntry) -> Presence {
        if self.path(entry).is_some() {
            return Presence::Yes;
        }
        // complete files of a split model count, too
        match self.bytes_of(entry.stored_as(), |name| name.ends_with(PARTIAL) || name != MODEL && name.ends_with(".gguf")) {
            0 => Presence::No,
            bytes => Presence::Partial(bytes),
        }
    }

    /// Total size of those of a model's files whose names match [bytes].
    fn bytes_of(&self, id: &str, matches: impl Fn(&str) -> bool) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.dir(id)) else { return 0 };
        let sizes =
            entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(&matches)).filter_map(|entry| entry.metadata().ok());
        sizes.map(|meta| meta.len()).sum()
    }

    /// Every complete model, sorted by id.
    pub fn list(&self) -> Vec<Manifest> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let mut all: Vec<_> = entries.flatten().filter_map(|entry| self.manifest(&entry.path())).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    pub(super) fn lock(&self, id: &str, progress: Option<&Progress>) -> Result<Lock, PullError> {
        let dir = self.root.join(LOCKS);
        refuse_link(&dir).and_then(|()| std::fs::create_dir_all(&dir)).map_err(|error| PullError::disk(&dir, error))?;
        let path = dir.join(self.dir(id).file_name().unwrap_or_default());
        let fault = |error| PullError::disk(&path, error);
        let file = open_own(&path).map_err(fault)?;
        match (try_lock(&file), progress) {
            (Ok(()), _) => {}
            (Err(std::fs::TryLockError::WouldBlock), Some(progress)) => {
                progress.stage(&format!("{id} is being fetched by another process: waiting for it"));
                file.lock().map_err(fault)?;
            }
            (Err(std::fs::TryLockError::WouldBlock), None) => {
                return Err(PullError::Refused(format!("{id} is being fetched by another process")));
            }
            (Err(std::fs::TryLockError::Error(error)), _) => return Err(fault(error)),
        }
        Ok(Lock(file))
    }

    /// Fetches a model. If the model is on disk already, verifies its files, and fetches them again if they are damaged. Blocks.
    pub fn pull(&self, entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<PulledModel, PullError> {
        if entry.source == Source::Stored {
            return Err(PullError::Refused("it was made on this machine: there is nothing to fetch".into()));
        }
        config::check_entry(entry).map_err(|fault| PullError::Refused(format!("model {:?}: {fault}", entry.id)))?;
        if let Source::File { path } = &entry.source {
            let fault = |error| PullError::disk(path, error);
            let size = outside::check_regular(path).map_err(fault)?.len();
            return Ok(PulledModel { path: path.clone(), sha256: sha256_of(path).map_err(fault)?, size, fetched: false });
        }
        let dir = self.dir(entry.stored_as());
        let _lock = self.lock(entry.stored_as(), Some(progress))?;
        let pulled = self.pull_into(&dir, entry, tools, progress);
        // Only an empty folder goes. What was fetched stays, and the next pull continues it.
        let _ = std::fs::remove_dir(&dir);
        pulled
    }

    /// Fetches a model into its folder, which is locked.
    fn pull_into(&self, dir: &Path, entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<PulledModel, PullError> {
        let fault = |error| PullError::disk(dir, error);
        progress.check()?;
        refuse_link(dir).and_then(|()| std::fs::create_dir_all(dir)).map_err(fault)?;
        if let Some(manifest) = self.find(entry) {
            progress.stage(&format!("verifying {}", entry.id));
            // It may be stored under an earlier id.
            let found = self.dir(&manifest.id);
            let right = |(name, digest, _): (&str, &str, u64)| Ok(sha256_of(&found.join(name)).map_err(fault)? == digest);
            let all = manifest.files().into_iter().map(right).collect::<Result<Vec<bool>, PullError>>()?;
            if !all.contains(&false) {
                let (manifest, fetched) = self.complete(manifest, entry, tools, progress)?;
                return Ok(self.pulled(manifest, fetched));
            }
            progress.note(&format!("{} is damaged on disk: fetching it again", entry.id));
        }
        remove_file(&dir.join(MANIFEST))?;
        let Pieces { weights, mmproj } = download::pieces(entry, tools, progress)?;
        let mut parts = Vec::new();
        let pieces: Vec<&Piece> = weights.iter().chain(&mmproj).collect();
        let whole = pieces.iter().map(|piece| piece.size).sum::<Option<u64>>().filter(|_| pieces.len() > 1);
        for (no, piece) in (1..).zip(&pieces) {
            if pieces.len() > 1 {
                progress.stage(&format!("{}: file {no} of {}", entry.id, pieces.len()));
                progress.begin_file(parts.iter().map(|part: &Part| part.size).sum(), whole);
            }
            parts.push(fetch_piece(dir, piece, tools, progress)?);
        }
        let mmproj = mmproj.and_then(|piece| Some(stored(piece, parts.pop()?)));
        let manifest = Manifest { mmproj, ..Manifest::new(entry, parts) };
        write_manifest(dir, &manifest)?;
        Ok(self.pulled(manifest, true))
    }

    fn pulled(&self, manifest: Manifest, fetched: bool) -> PulledModel {
        PulledModel { path: self.file(&manifest), size: manifest.whole_size(), sha256: manifest.sha256, fetched }
    }

    /// Verifies the picture encoder of a model whose weights are right, and fetches it if it is damaged, missing or another one. Says
    /// whether it was fetched.
    fn complete(&self, manifest: Manifest, entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<(Manifest, bool), PullError> {
        if let Some((path, known)) = self.mmproj(entry).zip(manifest.mmproj.as_ref()) {
            if sha256_of(&path).map_err(|error| PullError::disk(&path, error))? == known.sha256 {
                return Ok((manifest, false));
            }
            progress.note(&format!("the mmproj of {} is damaged on disk: fetching it again", entry.id));
        }
        let Some(piece) = download::mmproj_piece(entry, tools, progress) else { return Ok((manifest, false)) };
        let dir = self.dir(&manifest.id);
        let part = fetch_piece(&dir, &piece, tools, progress)?;
        let manifest = Manifest { mmproj: Some(stored(piece, part)), ..manifest };
        write_manifest(&dir, &manifest)?;
        Ok((manifest, true))
    }

    /// Deletes an entry's model from disk, under all its ids. Returns the number of bytes freed, or None if nothing was on disk.
    pub fn remove_entry(&self, entry: &ModelEntry) -> Result<Option<u64>, PullError> {
        let mut freed = None;
        for id in entry.stored_under() {
            if let Some(bytes) = self.remove(id)? {
                freed = Some(freed.unwrap_or(0) + bytes);
            }
        }
        Ok(freed)
    }

    /// Deletes a model from disk, including unfinished downloads. Returns the number of bytes freed, or None if nothing was on disk.
    pub fn remove(&self, id: &str) -> Result<Option<u64>, PullError> {
        let dir = self.dir(id);
        refuse_link(&dir).map_err(|error| PullError::disk(&dir, error))?;
        if !dir.is_dir() {
            return Ok(None);
        }
        let _lock = self.lock(id, None)?;
        let freed = self.own_bytes(&dir);
        let digests: Vec<String> =
            self.manifest(&dir).iter().flat_map(Manifest::all_files).map(|(_, digest, _)| digest.to_owned()).collect();
        // The manifest is removed first, so that the model is no longer listed even if the next step fails.
        remove_file(&dir.join(MANIFEST))?;
        std::fs::remove_dir_all(&dir).map_err(|error| PullError::disk(&dir, error))?;
        Ok(Some(freed + self.remove_blobs(&digests)))
    }

    /// The size of the files that no other model shares with a directory [bytes].
    fn own_bytes(&self, dir: &Path) -> u64 {
        let is_weights = |name: &str| name.ends_with(".gguf") || name.ends_with(PARTIAL);
        let files =
            std::fs::read_dir(dir).into_iter().flatten().flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_weights));
        let metas = files.filter_map(|entry| entry.path().symlink_metadata().ok());
        metas.filter(|meta| meta.is_file() && meta.nlink() == 1).map(|meta| meta.len()).sum()
    }
}

/// Whether a stored picture encoder is the one that an entry means.
fn is_meant(stored: &StoredMmproj, entry: &ModelEntry) -> bool {
    match &entry.mmproj {
        None => true,
        Some(mmproj) => mmproj.fetched().is_some_and(|file| match &file.sha256 {
            Some(digest) => *digest == stored.sha256,
            None => file.source == stored.source,
        }),
    }
}

fn stored(piece: Piece, part: Part) -> StoredMmproj {
    StoredMmproj { source: piece.source, sha256: part.sha256, size: part.size }
}

fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), PullError> {
    let (text, temporary) = (serde_json::to_vec_pretty(manifest).expect("plain data"), dir.join(MANIFEST).with_extension("tmp"));
    write_atomically(&dir.join(MANIFEST), &temporary, &text).map_err(|error| PullError::disk(&temporary, error))
}

/// Fetches one file. A complete file from an earlier pull is kept if its digest is known and right.
pub(super) fn fetch_piece(dir: &Path, piece: &Piece, tools: &Tools, progress: &Progress) -> Result<Part, PullError> {
    let path = dir.join(&piece.name);
    let found = std::fs::metadata(&path).ok().map(|meta| meta.len());
    if let (Some(digest), Some(size)) = (&piece.sha256, found.filter(|size| piece.size == Some(*size)))
        && sha256_of(&path).map_err(|error| PullError::disk(&path, error))? == *digest
    {
        return Ok(Part { name: piece.name.clone(), sha256: digest.clone(), size });
    }
    let mut partial = Partial::open(dir, piece)?;
    download::fetch(piece, &mut partial, tools, progress)?;
    let (size, sha256) = partial.finish(piece)?;
    Ok(Part { name: piece.name.clone(), sha256, size })
}

fn remove_file(path: &Path) -> Result<(), PullError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PullError::disk(path, error)),
        _ => Ok(()),
    }
}

/// Writes a file atomically, under another name first. Even after a power cut, the file is either complete or absent.
pub(super) fn write_atomically(path: &Path, temporary: &Path, bytes: &[u8]) -> std::io::Result<()> {
    write_own(temporary, bytes)?.sync_all()?;
    std::fs::rename(temporary, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

/// Brings a folder's names to the disk.
pub(super) fn sync_folder(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Takes the lock of a file, with retries. A child process that is being started briefly holds a copy of every lock of this process, so a
/// lock may seem to be taken.
fn try_lock(file: &File) -> Result<(), std::fs::TryLockError> {
    for _ in 0..20 {
        match file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
    }
    file.try_lock()
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
