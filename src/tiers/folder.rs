//! A folder of files: what is in it, and what leaves it.
//!
//! The file that was used least recently leaves first. The time of its last use is the file's modification time, so processes that share a
//! folder agree on it. A block counts as used later than the blocks behind it, because those are of no use without it.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use metrics::TierMetrics;

use crate::file::{Saved, Wanted, decode, encode, len};
use crate::key::Key;

/// Files that nobody has asked for in this time are removed: they hold what users have written.
const MAX_AGE: Duration = Duration::from_hours(30 * 24);
/// An unfinished file is left alone for this time, in which its writer, if it lives, ends it.
const UNFINISHED: Duration = Duration::from_mins(10);
/// A full folder is emptied by this share beyond what is needed, since finding what leaves takes a look at all files.
const SPARE: u64 = 32;

/// What is known of a file.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

#[derive(Debug, Default)]
struct Index {
    files: HashMap<Key, Entry>,
    bytes: u64,
}

impl Index {
    fn insert(&mut self, key: Key, entry: Entry) {
        self.remove(&key);
        self.bytes += entry.bytes;
        self.files.insert(key, entry);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.files.remove(key) {
            self.bytes -= entry.bytes;
        }
    }
}

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    limit: u64,
    index: Mutex<Index>,
    has_warned: AtomicBool,
    /// What sets the names of this process' unfinished files apart. In containers, processes have the same ids.
    token: u64,
    num_written: AtomicU64,
}

/// Makes a folder for its owner alone, if there is none.
pub fn make(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl Folder {
    /// `limit`: the most bytes of all files.
    pub fn new(path: PathBuf, limit: u64) -> Self {
        let token = getrandom::u64().unwrap_or_else(|_| std::process::id().into());
        Self { path, limit, index: Mutex::default(), has_warned: AtomicBool::new(false), token, num_written: AtomicU64::new(0) }
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a file was there when the folder was last looked at.
    pub fn contains(&self, key: &Key) -> bool {
        self.index().files.contains_key(key)
    }

    /// Forgets a file, so that it is written again.
    pub fn forget(&self, key: &Key) {
        self.index().remove(key);
    }

    /// Warns of a fault of the disk. Later ones are not worth a line each.
    pub fn warn(&self, what: &str, error: &Error) {
        TierMetrics::of_process().failures_total.inc();
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "{what} {}: {error}: prompts are computed where the folder does not help",
                self.path.display().to_string().escape_debug()
            );
        }
    }

    /// Looks at the folder: at what other processes have written or removed, and at what is too old.
    ///
    /// # Errors
    /// The folder is not there and cannot be made, or cannot be read.
    pub fn scan(&self) -> Result<()> {
        make(&self.path)?;
        let now = SystemTime::now();
        let mut found = Index::default();
        for below in std::fs::read_dir(&self.path)?.flatten().filter(|below| below.file_name().len() == 2) {
            let Ok(files) = std::fs::read_dir(below.path()) else { continue };
            for file in files.flatten() {
                let Ok(metadata) = file.metadata() else { continue };
                let name = file.file_name();
                let (Some(name), Ok(used)) = (name.to_str(), metadata.modified()) else { continue };
                let age = now.duration_since(used).unwrap_or_default();
                match Key::of_name(name) {
                    Some(key) if age < MAX_AGE => found.insert(key, Entry { bytes: metadata.len(), used }),
                    Some(_) => self.discard(&file.path()),
                    None if name.ends_with(".partial") && age > UNFINISHED => self.discard(&file.path()),
                    // Not ours.
                    None => {}
                }
            }
        }
        *self.index() = found;
        self.make_room(0);
        self.show();
        Ok(())
    }

    fn show(&self) {
        let metrics = TierMetrics::of_process();
        let index = self.index();
        metrics.bytes.set(index.bytes as i64);
        metrics.files.set(index.files.len() as i64);
    }

    /// Removes a file. It may be gone already.
    fn discard(&self, path: &Path) {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => self.warn("a file cannot be removed from", &error),
            _ => {}
        }
    }

    /// Removes the least recently used files until `bytes` more bytes fit.
    fn make_room(&self, bytes: u64) {
        let mut files: Vec<(SystemTime, Key)> = {
            let index = self.index();
            if index.bytes.saturating_add(bytes) <= self.limit {
                return;
            }
            index.files.iter().map(|(key, entry)| (entry.used, *key)).collect()
        };
        // Sorted without the lock, for which an engine thread may wait.
        files.sort_unstable();
        let target = self.limit.saturating_sub(bytes).saturating_sub(self.limit / SPARE);
        let mut leaving = Vec::new();
        for (_, key) in files {
            let mut index = self.index();
            if index.bytes <= target {
                break;
            }
            index.remove(&key);
            leaving.push(key);
        }
        leaving.iter().for_each(|key| self.discard(&self.path.join(key.path())));
        TierMetrics::of_process().evictions_total.inc_by(leaving.len() as u64);
    }

    /// Writes a file, unless there is one already or the folder is too small for it.
    ///
    /// # Errors
    /// The disk's. Nothing of the file is left then.
    pub fn write(&self, saved: &Saved) -> Result<()> {
        let Saved { key, identity, payload } = saved;
        let bytes = len(identity.bytes.len(), payload.len());
        if bytes > self.limit || self.contains(key) {
            return Ok(());
        }
        self.make_room(bytes);
        let path = self.path.join(key.path());
        make(path.parent().unwrap_or(&self.path))?;
        let number = self.num_written.fetch_add(1, Ordering::Relaxed);
        let aside = path.with_extension(format!("{:x}-{number}.partial", self.token));
        let used = used_now(identity.depth);
        let written = write_aside(&aside, saved, used).and_then(|()| std::fs::rename(&aside, &path));
        if let Err(error) = written {
            self.discard(&aside);
            return Err(error);
        }
        self.index().insert(*key, Entry { bytes, used });
        TierMetrics::of_process().saved_bytes_total.inc_by(bytes);
        self.show();
        Ok(())
    }

    /// Reads a file. Returns its bytes and the place of the payload. None if it is gone, or is not what is asked for: then it is removed.
    pub fn read(&self, wanted: &Wanted) -> Option<(Vec<u8>, Range<usize>)> {
        let Wanted { key, identity, len: payload } = wanted;
        let path = self.path.join(key.path());
        let read = outside::read_regular(&path, len(identity.bytes.len(), *payload));
        let fault = match read {
            Ok(bytes) => match decode(&bytes, key.part, &identity.bytes, *payload) {
                Some(place) => {
                    self.use_now(key, &path, identity.depth);
                    return Some((bytes, place));
                }
                None => Some("it is cut, changed or another's".to_owned()),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => Some(error.to_string()),
        };
        self.index().remove(key);
        if let Some(fault) = fault {
            tracing::debug!("{}: {fault}: it is removed", path.display());
            TierMetrics::of_process().refused_total.inc();
            self.discard(&path);
        }
        self.show();
        None
    }

    /// Marks a file as used. If the folder is read-only, only this process knows of it.
    fn use_now(&self, key: &Key, path: &Path, depth: u32) {
        let used = used_now(depth);
        if let Some(entry) = self.index().files.get_mut(key) {
            entry.used = used;
        }
        let _ = OpenOptions::new().write(true).open(path).and_then(|file| set_used(&file, used));
    }
}

/// The time of last use of a block with `depth` blocks before it.
fn used_now(depth: u32) -> SystemTime {
    SystemTime::now() - Duration::from_micros(depth.into())
}

/// Writes a file under another name than its own. It need not reach the disk now: one that a power cut leaves incomplete is not believed.
fn write_aside(path: &Path, Saved { key, identity, payload }: &Saved, used: SystemTime) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let (before, checksum) = encode(key.part, &identity.bytes, payload);
    [&before[..], payload, &checksum].into_iter().try_for_each(|part| file.write_all(part))?;
    set_used(&file, used)
}

fn set_used(file: &File, used: SystemTime) -> Result<()> {
    // Miri lacks the call.
    if cfg!(miri) { Ok(()) } else { file.set_modified(used) }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
