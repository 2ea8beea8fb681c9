//! What is on disk: `models_dir/NAME/model.gguf` with its `manifest.json`; of a split model `model-00001-of-0000N.gguf` and so on. A model
//! counts only with both, and the manifest is written last, so that a download which was cut short never passes for a whole one.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::source::{self, PARTIAL, Partial, Piece, Progress, PullError, Tools, hex, sha256_of};
use crate::config::{ModelEntry, Source};

const MODEL: &str = "model.gguf";
const MANIFEST: &str = "manifest.json";
const LOCKS: &str = ".locks";

/// What a stored model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub id: String,
    pub source: Source,
    /// Of the whole file, lower-case hex; of a split model, of its parts' digests, one a line.
    pub sha256: String,
    /// Bytes, of all parts.
    pub size: u64,
    /// The files of a split model, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// When it was fetched: Unix seconds.
    pub date: u64,
}

/// One file of a split model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// In the model's directory.
    pub name: String,
    pub sha256: String,
    pub size: u64,
}

impl Manifest {
    /// Its files: name, digest and size of each.
    fn files(&self) -> Vec<(&str, &str, u64)> {
        match &self.parts[..] {
            [] => vec![(MODEL, &self.sha256, self.size)],
            parts => parts.iter().map(|part| (part.name.as_str(), part.sha256.as_str(), part.size)).collect(),
        }
    }
}

/// A model that is on disk after a pull.
#[derive(Clone, Debug)]
pub struct Pulled {
    pub path: PathBuf,
    pub sha256: String,
    pub size: u64,
    /// False: it was there already, and its digest is right.
    pub fetched: bool,
}

/// How much of a model is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    No,
    /// Bytes that a pull would go on from.
    Partial(u64),
    Yes,
}

/// The directory of downloaded models.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// Held while a model's files change; the system lets go of it when the process ends, however it ends.
struct Lock(#[allow(dead_code)] File);

impl Store {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A model's directory: `:` and `/`, which no id has otherwise, become `+` and `=`, so that no two ids share one.
    fn dir(&self, id: &str) -> PathBuf {
        self.root.join(id.replace(':', "+").replace('/', "="))
    }

    /// A model's file, the first one of a split model.
    pub fn file(&self, manifest: &Manifest) -> PathBuf {
        self.dir(&manifest.id).join(manifest.files()[0].0)
    }

    fn manifest(&self, dir: &Path) -> Option<Manifest> {
        let manifest: Manifest = serde_json::from_slice(&std::fs::read(dir.join(MANIFEST)).ok()?).ok()?;
        let plain = |name: &str| Path::new(name).file_name().is_some_and(|file| file == name);
        let is_there = |&(name, _, size): &(&str, &str, u64)| {
            plain(name) && std::fs::metadata(dir.join(name)).is_ok_and(|meta| meta.is_file() && meta.len() == size)
        };
        let whole = self.dir(&manifest.id) == dir && manifest.files().iter().all(is_there);
        whole.then_some(manifest)
    }

    /// The manifest of an entry's model, if its file is there whole and is the one that the entry means.
    pub fn find(&self, entry: &ModelEntry) -> Option<Manifest> {
        self.manifest(&self.dir(&entry.id)).filter(|manifest| match &entry.sha256 {
            Some(digest) => *digest == manifest.sha256,
            None => manifest.source == entry.source,
        })
    }

    /// The file to open, if it is there.
    pub fn path(&self, entry: &ModelEntry) -> Option<PathBuf> {
        match &entry.source {
            Source::File { path } => path.is_file().then(|| path.clone()),
            _ => self.find(entry).map(|manifest| self.file(&manifest)),
        }
    }

    pub fn presence(&self, entry: &ModelEntry) -> Presence {
        if self.path(entry).is_some() {
            return Presence::Yes;
        }
        // parts that are whole count as well
        match self.bytes_of(&entry.id, |name| name.ends_with(PARTIAL) || name != MODEL && name.ends_with(".gguf")) {
            0 => Presence::No,
            bytes => Presence::Partial(bytes),
        }
    }

    /// The bytes of a model's files whose names are meant.
    fn bytes_of(&self, id: &str, meant: impl Fn(&str) -> bool) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.dir(id)) else { return 0 };
        let sizes =
            entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(&meant)).filter_map(|entry| entry.metadata().ok());
        sizes.map(|meta| meta.len()).sum()
    }

    /// Every whole model, by id.
    pub fn list(&self) -> Vec<Manifest> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let mut all: Vec<_> = entries.flatten().filter_map(|entry| self.manifest(&entry.path())).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    fn lock(&self, id: &str, progress: Option<&Progress>) -> Result<Lock, PullError> {
        let dir = self.root.join(LOCKS);
        std::fs::create_dir_all(&dir).map_err(|error| PullError::disk(&dir, error))?;
        let path = dir.join(self.dir(id).file_name().unwrap_or_default());
        let fault = |error| PullError::disk(&path, error);
        let file = File::create(&path).map_err(fault)?;
        match (file.try_lock(), progress) {
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

    /// Fetches a model, or verifies the one that is there; one that is damaged is fetched anew. Blocking.
    pub fn pull(&self, entry: &ModelEntry, tools: &Tools, progress: &Progress) -> Result<Pulled, PullError> {
        crate::config::check_entry(entry).map_err(|fault| PullError::Refused(format!("model {:?}: {fault}", entry.id)))?;
        if let Source::File { path } = &entry.source {
            let fault = |error| PullError::disk(path, error);
            let size = std::fs::metadata(path).map_err(fault)?.len();
            return Ok(Pulled { path: path.clone(), sha256: sha256_of(path).map_err(fault)?, size, fetched: false });
        }
        let dir = self.dir(&entry.id);
        let fault = |error| PullError::disk(&dir, error);
        let _lock = self.lock(&entry.id, Some(progress))?;
        std::fs::create_dir_all(&dir).map_err(fault)?;
        if let Some(manifest) = self.find(entry) {
            progress.stage(&format!("verifying {}", entry.id));
            let right = |(name, digest, _): (&str, &str, u64)| Ok(sha256_of(&dir.join(name)).map_err(fault)? == digest);
            let all = manifest.files().into_iter().map(right).collect::<Result<Vec<bool>, PullError>>()?;
            if !all.contains(&false) {
                return Ok(Pulled { path: self.file(&manifest), sha256: manifest.sha256, size: manifest.size, fetched: false });
            }
            progress.note(&format!("{} is damaged on disk: fetching it anew", entry.id));
        }
        remove_file(&dir.join(MANIFEST))?;
        let mut parts = Vec::new();
        let pieces = source::plan(entry, tools)?;
        for (no, piece) in (1..).zip(&pieces) {
            if pieces.len() > 1 {
                progress.stage(&format!("{}: part {no} of {}", entry.id, pieces.len()));
            }
            parts.push(fetch_piece(&dir, piece, tools, progress)?);
        }
        let manifest = Manifest::new(entry, parts);
        write_whole(&dir.join(MANIFEST), &serde_json::to_vec_pretty(&manifest).expect("plain data")).map_err(fault)?;
        Ok(Pulled { path: self.file(&manifest), sha256: manifest.sha256, size: manifest.size, fetched: true })
    }

    /// Deletes what is on disk of a model, the unfinished included; gives the bytes freed, None: there was nothing.
    pub fn remove(&self, id: &str) -> Result<Option<u64>, PullError> {
        let dir = self.dir(id);
        if !dir.is_dir() {
            return Ok(None);
        }
        let _lock = self.lock(id, None)?;
        let freed = self.bytes_of(id, |name| name.ends_with(".gguf") || name.ends_with(PARTIAL));
        // First the manifest: from then on the model is not listed, whatever happens to the rest.
        remove_file(&dir.join(MANIFEST))?;
        std::fs::remove_dir_all(&dir).map_err(|error| PullError::disk(&dir, error))?;
        Ok(Some(freed))
    }
}

/// Fetches one file; one that an earlier pull left whole is kept, where its digest is known.
fn fetch_piece(dir: &Path, piece: &Piece, tools: &Tools, progress: &Progress) -> Result<Part, PullError> {
    let path = dir.join(&piece.name);
    let found = std::fs::metadata(&path).ok().map(|meta| meta.len());
    if let (Some(digest), Some(size)) = (&piece.sha256, found.filter(|size| piece.size == Some(*size)))
        && sha256_of(&path).map_err(|error| PullError::disk(&path, error))? == *digest
    {
        return Ok(Part { name: piece.name.clone(), sha256: digest.clone(), size });
    }
    let mut partial = Partial::open(dir, piece)?;
    source::fetch(piece, &mut partial, tools, progress)?;
    let (size, sha256) = partial.finish(piece)?;
    Ok(Part { name: piece.name.clone(), sha256, size })
}

impl Manifest {
    fn new(entry: &ModelEntry, parts: Vec<Part>) -> Self {
        let date = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (id, source) = (entry.id.clone(), entry.source.clone());
        if let [one] = &parts[..] {
            return Self { id, source, sha256: one.sha256.clone(), size: one.size, parts: Vec::new(), date };
        }
        let lines: String = parts.iter().map(|part| format!("{}\n", part.sha256)).collect();
        Self { id, source, sha256: hex(&Sha256::digest(lines)), size: parts.iter().map(|part| part.size).sum(), parts, date }
    }
}

fn remove_file(path: &Path) -> Result<(), PullError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PullError::disk(path, error)),
        _ => Ok(()),
    }
}

/// Writes a file that is there whole or not at all, even after a power cut.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}
