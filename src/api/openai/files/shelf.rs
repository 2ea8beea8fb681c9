//! The files in their folder: `ID` holds a file's content and `ID.json` what is known of it. A file is there once both are.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::disk::{self, UNFINISHED, now};
use super::super::shares::{Refused, Shares};
use super::entry::Entry;
use config::Storage;
use http::error::{ApiError, Kind};

/// Every file of every tenant.
pub struct Shelf {
    folder: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    by_serial: BTreeMap<u64, Entry>,
    serials: HashMap<String, u64>,
    /// The place of the next file.
    next: u64,
    /// All files, those that are being uploaded, and those that batches will make.
    files: Shares,
    /// The size of all files, those that are being uploaded, and what batches hold.
    bytes: Shares,
}

impl Inner {
    fn new(storage: &Storage) -> Self {
        let (files, bytes) = (Shares::new(storage.max_files as u64), Shares::new(storage.max_bytes));
        Self { by_serial: BTreeMap::new(), serials: HashMap::new(), next: 0, files, bytes }
    }

    fn add(&mut self, entry: Entry) {
        self.files.add(&entry.tenant, 1);
        self.bytes.add(&entry.tenant, entry.bytes);
        self.next = self.next.max(entry.serial + 1);
        self.serials.insert(entry.id.clone(), entry.serial);
        self.by_serial.insert(entry.serial, entry);
    }
}

impl Shelf {
    /// Reads what is in the folder, which is made if it is not there. Removes what an end in the middle has left.
    pub fn open(folder: &Path, storage: &Storage) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut inner = Inner::new(storage);
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
        Ok(Self { folder: folder.to_owned(), inner: Mutex::new(inner) })
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

    /// Takes places for files that a tenant is about to make, and no bytes yet.
    ///
    /// # Errors
    /// The shelf is full, or the tenant has its share.
    pub fn places(self: &Arc<Self>, tenant: &str, files: u64) -> Result<Reserved, ApiError> {
        let taken = self.lock().files.take(tenant, files);
        taken.map_err(|refused| match refused {
            Refused::Full => {
                full("the server has no place for more files (storage.max_files): delete some with DELETE /v1/files/ID".into())
            }
            Refused::Share { own, free } => full(format!(
                "you have {own} files, and {free} places are left for others (storage.max_files): delete some with DELETE /v1/files/ID"
            )),
        })?;
        Ok(Reserved { shelf: self.clone(), tenant: tenant.to_owned(), files, bytes: 0 })
    }

    /// What a tenant holds already, whether there is room for it or not.
    pub fn held(self: &Arc<Self>, tenant: &str, files: u64, bytes: u64) -> Reserved {
        let mut inner = self.lock();
        inner.files.add(tenant, files);
        inner.bytes.add(tenant, bytes);
        Reserved { shelf: self.clone(), tenant: tenant.to_owned(), files, bytes }
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
            inner.files.give(&entry.tenant, 1);
            inner.bytes.give(&entry.tenant, entry.bytes);
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

fn full(message: String) -> ApiError {
    ApiError::new(Kind::StorageFull, message)
}

/// Room for files that are being uploaded, or for what a batch holds, until dropped.
pub struct Reserved {
    shelf: Arc<Shelf>,
    tenant: String,
    files: u64,
    bytes: u64,
}

impl Reserved {
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes room for `more` bytes.
    ///
    /// # Errors
    /// There is no room, or the tenant has its share.
    pub fn grow(&mut self, more: u64) -> Result<(), ApiError> {
        let taken = self.shelf.lock().bytes.take(&self.tenant, more);
        taken.map_err(|refused| match refused {
            Refused::Full => {
                full("the files of all clients take all the room that the server has for them (storage.max_bytes): delete some".into())
            }
            Refused::Share { own, free } => {
                full(format!("your files take {own} bytes, and {free} bytes are left for others (storage.max_bytes): delete some"))
            }
        })?;
        self.bytes += more;
        Ok(())
    }

    /// Holds so much, whether there is room or not.
    pub fn set(&mut self, bytes: u64) {
        let mut inner = self.shelf.lock();
        inner.bytes.give(&self.tenant, self.bytes);
        inner.bytes.add(&self.tenant, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut inner = self.shelf.lock();
        inner.files.give(&self.tenant, self.files);
        inner.bytes.give(&self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, Overrides, Surroundings};

    fn shelf(folder: &Path, max_files: usize, max_bytes: u64) -> Arc<Shelf> {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let config = Config::load_from(&Surroundings { env, ..Default::default() }, &Overrides::default()).unwrap();
        Arc::new(Shelf::open(folder, &Storage { max_files, max_bytes, ..config.storage }).unwrap())
    }

    fn put(shelf: &Arc<Shelf>, tenant: &str, size: usize) -> Result<Entry, ApiError> {
        let mut room = shelf.places(tenant, 1)?;
        room.grow(size as u64)?;
        let entry = Entry { bytes: size as u64, ..Entry::new(tenant, "a".into(), "batch") };
        let path = shelf.unfinished(&entry.id);
        fs::write(&path, vec![0; size]).unwrap();
        Ok(shelf.take(entry, &path).unwrap())
    }

    #[test]
    fn a_tenant_cannot_fill_the_shelf_for_others_and_a_restart_knows_who_has_what() {
        let folder = tempfile::tempdir().unwrap();
        let shelf_of_twelve = || shelf(folder.path(), 12, 8000);
        let first = shelf_of_twelve();
        let files: Vec<_> = (0..6).map(|_| put(&first, "ann", 10).unwrap()).collect();
        let error = put(&first, "ann", 10).unwrap_err();
        assert!(error.kind == Kind::StorageFull && error.message.starts_with("you have 6 files"), "{}", error.message);
        drop(first);
        let shelf = shelf_of_twelve();
        assert!(put(&shelf, "ann", 10).is_err() && put(&shelf, "bob", 10).is_ok());
        files[..2].iter().for_each(|file| shelf.delete(&file.id).unwrap());
        let error = put(&shelf, "ann", 4000).unwrap_err();
        assert!(error.message.contains("storage.max_bytes") && error.message.starts_with("your files take 40 bytes"), "{}", error.message);
        assert!(put(&shelf, "ann", 3900).is_ok() && put(&shelf, "bob", 1900).is_ok(), "a refusal has given its place back");
        // What a batch holds counts as its tenant's.
        let held = shelf.held("bob", 2, 5000);
        assert!(put(&shelf, "bob", 1).is_err() && put(&shelf, "carl", 1).is_err());
        drop(held);
        assert!(put(&shelf, "carl", 1).is_ok());
    }
}
