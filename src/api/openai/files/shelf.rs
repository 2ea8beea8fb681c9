//! The files in their folder: `ID` holds a file's content and `ID.json` what is known of it. A file is there once both are.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::disk::{self, UNFINISHED, now};
use super::entry::Entry;
use crate::http::error::{ApiError, Kind};
use config::Storage;

/// Every file of every tenant.
pub struct Shelf {
    folder: PathBuf,
    max_bytes: u64,
    max_files: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_serial: BTreeMap<u64, Entry>,
    serials: HashMap<String, u64>,
    /// The place of the next file.
    next: u64,
    /// The size of all files, those that are being uploaded, and what batches hold.
    num_bytes: u64,
}

impl Inner {
    fn add(&mut self, entry: Entry) {
        self.num_bytes += entry.bytes;
        self.next = self.next.max(entry.serial + 1);
        self.serials.insert(entry.id.clone(), entry.serial);
        self.by_serial.insert(entry.serial, entry);
    }
}

impl Shelf {
    /// Reads what is in the folder, which is made if it is not there. Removes what an end in the middle has left.
    pub fn open(folder: &Path, storage: &Storage) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut inner = Inner::default();
        let (mut entries, mut contents) = (Vec::new(), Vec::new());
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("json") => entries.push(path),
                Some(extension) if format!(".{extension}") == UNFINISHED => disk::remove(&path)?,
                _ => contents.push(path),
            }
        }
        for path in entries {
            let read = fs::read(&path).and_then(|text| serde_json::from_slice::<Entry>(&text).map_err(io::Error::other));
            match read {
                Ok(entry) if folder.join(&entry.id).is_file() => inner.add(entry),
                // Its content went first: it was being deleted.
                Ok(_) => disk::remove(&path)?,
                Err(error) => {
                    tracing::warn!(file = %path.display(), "what is known of a file cannot be read, so it is left alone: {error}")
                }
            }
        }
        let is_orphan = |path: &&PathBuf| !path.with_extension("json").exists();
        contents.iter().filter(is_orphan).try_for_each(|path| disk::remove(path))?;
        Ok(Self { folder: folder.to_owned(), max_bytes: storage.max_bytes, max_files: storage.max_files, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn path(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    fn entry_path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Where the content of a new file is written before it is there.
    pub fn unfinished(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{UNFINISHED}"))
    }

    /// Takes room for `more` bytes of a file that is being uploaded, or that a batch holds.
    pub fn reserve(self: &Arc<Self>, held: &mut Reserved, more: u64) -> Result<(), ApiError> {
        let mut inner = self.lock();
        if inner.by_serial.len() >= self.max_files {
            let message = format!("the server holds {} files (storage.max_files): delete some with DELETE /v1/files/ID", self.max_files);
            return Err(ApiError::new(Kind::StorageFull, message));
        }
        if inner.num_bytes + more > self.max_bytes {
            let message = "the files of all clients take all the room that the server has for them (storage.max_bytes): delete some";
            return Err(ApiError::new(Kind::StorageFull, message));
        }
        inner.num_bytes += more;
        held.bytes += more;
        Ok(())
    }

    /// Room for nothing yet.
    pub fn reserved(self: &Arc<Self>) -> Reserved {
        Reserved { shelf: self.clone(), bytes: 0 }
    }

    /// Puts a file on the shelf whose content is on the disk as `from`. After a crash in between, `from` is still there, and the same file
    /// may come again.
    pub fn take(&self, mut entry: Entry, from: &Path) -> io::Result<Entry> {
        let mut inner = self.lock();
        if let Some(serial) = inner.serials.get(&entry.id) {
            return Ok(inner.by_serial[serial].clone());
        }
        entry.serial = inner.next;
        inner.next += 1;
        // Handlers on the event loop take the lock, and a disk may be slow.
        drop(inner);
        let text = serde_json::to_vec(&entry).map_err(io::Error::other)?;
        let known = self.entry_path(&entry.id);
        disk::write_whole(&known, &text)?;
        disk::publish(from, &self.path(&entry.id)).inspect_err(|_| {
            // If this fails, the next start removes it.
            let _ = fs::remove_file(&known);
        })?;
        self.lock().add(entry.clone());
        Ok(entry)
    }

    /// A file of a tenant. Another tenant's is not there.
    pub fn get(&self, tenant: &str, id: &str) -> Option<Entry> {
        let inner = self.lock();
        let entry = inner.by_serial.get(inner.serials.get(id)?)?;
        (entry.tenant == tenant && !entry.is_expired(now())).then(|| entry.clone())
    }

    /// The files of a tenant, in the order of their arrival.
    pub fn list(&self, tenant: &str) -> Vec<Entry> {
        let now = now();
        self.lock().by_serial.values().filter(|entry| entry.tenant == tenant && !entry.is_expired(now)).cloned().collect()
    }

    /// Deletes a file.
    pub fn delete(&self, id: &str) -> io::Result<()> {
        disk::remove(&self.path(id))?;
        disk::remove(&self.entry_path(id))?;
        let mut inner = self.lock();
        if let Some(entry) = inner.serials.remove(id).and_then(|serial| inner.by_serial.remove(&serial)) {
            inner.num_bytes -= entry.bytes;
        }
        Ok(())
    }

    /// Deletes the files whose time has come.
    pub fn sweep(&self) -> io::Result<()> {
        let now = now();
        let due: Vec<String> = self.lock().by_serial.values().filter(|entry| entry.is_expired(now)).map(|entry| entry.id.clone()).collect();
        due.iter().try_for_each(|id| self.delete(id))
    }

    /// Opens a file's content.
    pub fn read(&self, entry: &Entry) -> io::Result<File> {
        File::open(self.path(&entry.id))
    }
}

/// Room for a file that is being uploaded, or for what a batch holds, until dropped.
pub struct Reserved {
    shelf: Arc<Shelf>,
    bytes: u64,
}

impl Reserved {
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds so much, whether there is room or not.
    pub fn set(&mut self, bytes: u64) {
        let mut inner = self.shelf.lock();
        inner.num_bytes = inner.num_bytes - self.bytes + bytes;
        self.bytes = bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.shelf.lock().num_bytes -= self.bytes;
    }
}
