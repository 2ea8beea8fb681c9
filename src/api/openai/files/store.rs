//! The files on disk. `ID` holds a file's content and `ID.json` its record. A file exists once both do.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::disk::{self, UNFINISHED, now};
use super::super::tenant_quotas::{QuotaError, TenantQuotas};
use super::record::FileRecord;
use config::Storage;
use http::error::{ApiError, Kind};

/// The files of all tenants.
pub struct FileStore {
    folder: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    by_serial: BTreeMap<u64, FileRecord>,
    serials: HashMap<String, u64>,
    /// The number of the next file.
    next: u64,
    /// The number of files, including those being uploaded and those that batches will make.
    files: TenantQuotas,
    /// The size of all files, including those being uploaded and the room of batches [bytes].
    bytes: TenantQuotas,
}

impl Inner {
    fn new(storage: &Storage) -> Self {
        let (files, bytes) = (TenantQuotas::new(storage.max_files as u64), TenantQuotas::new(storage.max_bytes));
        Self { by_serial: BTreeMap::new(), serials: HashMap::new(), next: 0, files, bytes }
    }

    fn add(&mut self, entry: FileRecord) {
        self.files.add(&entry.tenant, 1);
        self.bytes.add(&entry.tenant, entry.bytes);
        self.next = self.next.max(entry.serial + 1);
        self.serials.insert(entry.id.clone(), entry.serial);
        self.by_serial.insert(entry.serial, entry);
    }
}

impl FileStore {
    /// Reads the folder, which is created if it does not exist. Removes the remains of interrupted writes.
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
            let read = fs::read(&path).and_then(|text| serde_json::from_slice::<FileRecord>(&text).map_err(io::Error::other));
            match read {
                Ok(entry) if folder.join(&entry.id).is_file() => inner.add(entry),
                // The content is deleted first, so the file was being deleted.
                Ok(_) => disk::remove(&path)?,
                Err(error) => {
                    tracing::warn!(file = %path.display(), "cannot read a file's record, so the file is left alone: {error}")
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

    /// Returns the path where the content of a new file is written before it is complete.
    pub fn unfinished(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}{UNFINISHED}"))
    }

    /// Reserves a number of files for a tenant, with no bytes yet.
    ///
    /// # Errors
    /// Fails if the store is full, or if the tenant has used its share.
    pub fn reserve(self: &Arc<Self>, tenant: &str, files: u64) -> Result<Reserved, ApiError> {
        let taken = self.lock().files.take(tenant, files);
        taken.map_err(|refused| match refused {
            QuotaError::Full => {
                full("the server has no place for more files (storage.max_files): delete some with DELETE /v1/files/ID".into())
            }
            QuotaError::Share { own, free } => full(format!(
                "you have {own} files, and {free} places are left for others (storage.max_files): delete some with DELETE /v1/files/ID"
            )),
        })?;
        Ok(Reserved { store: self.clone(), tenant: tenant.to_owned(), files, bytes: 0 })
    }

    /// Reserves room for files that a tenant has already, even if that exceeds the bounds.
    pub fn held(self: &Arc<Self>, tenant: &str, files: u64, bytes: u64) -> Reserved {
        let mut inner = self.lock();
        inner.files.add(tenant, files);
        inner.bytes.add(tenant, bytes);
        Reserved { store: self.clone(), tenant: tenant.to_owned(), files, bytes }
    }

    /// Adds a file whose content is on disk at `from`. After a crash in between, `from` still exists, and the same file may be added again.
    pub fn take(&self, mut entry: FileRecord, from: &Path) -> io::Result<FileRecord> {
        let mut inner = self.lock();
        if let Some(serial) = inner.serials.get(&entry.id) {
            return Ok(inner.by_serial[serial].clone());
        }
        entry.serial = inner.next;
        inner.next += 1;
        // Handlers on the event loop take the lock, so it is not held while writing to a disk that may be slow.
        drop(inner);
        let text = serde_json::to_vec(&entry).map_err(io::Error::other)?;
        let known = self.entry_path(&entry.id);
        disk::write_whole(&known, &text)?;
        disk::publish(from, &self.path(&entry.id)).inspect_err(|_| {
            // If this fails, the next start removes the record.
            let _ = fs::remove_file(&known);
        })?;
        self.lock().add(entry.clone());
        Ok(entry)
    }

    /// Returns a file of a tenant. Other tenants' files count as missing.
    pub fn get(&self, tenant: &str, id: &str) -> Option<FileRecord> {
        let inner = self.lock();
        let entry = inner.by_serial.get(inner.serials.get(id)?)?;
        (entry.tenant == tenant && !entry.is_expired(now())).then(|| entry.clone())
    }

    /// Lists the files of a tenant, in the order of arrival.
    pub fn list(&self, tenant: &str) -> Vec<FileRecord> {
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

    /// Deletes the files that have expired.
    pub fn sweep(&self) -> io::Result<()> {
        let now = now();
        let due: Vec<String> = self.lock().by_serial.values().filter(|entry| entry.is_expired(now)).map(|entry| entry.id.clone()).collect();
        due.iter().try_for_each(|id| self.delete(id))
    }

    /// Opens a file's content.
    pub fn read(&self, entry: &FileRecord) -> io::Result<File> {
        File::open(self.path(&entry.id))
    }
}

fn full(message: String) -> ApiError {
    ApiError::new(Kind::StorageFull, message)
}

/// Reserved room for uploads or for a batch, returned when dropped.
pub struct Reserved {
    store: Arc<FileStore>,
    tenant: String,
    files: u64,
    bytes: u64,
}

impl Reserved {
    pub fn num_bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves `more` bytes.
    ///
    /// # Errors
    /// Fails if there is no room, or if the tenant has used its share.
    pub fn grow(&mut self, more: u64) -> Result<(), ApiError> {
        let taken = self.store.lock().bytes.take(&self.tenant, more);
        taken.map_err(|refused| match refused {
            QuotaError::Full => {
                full("the files of all clients take all the room that the server has for them (storage.max_bytes): delete some".into())
            }
            QuotaError::Share { own, free } => {
                full(format!("your files take {own} bytes, and {free} bytes are left for others (storage.max_bytes): delete some"))
            }
        })?;
        self.bytes += more;
        Ok(())
    }

    /// Sets the reserved size, even if that exceeds the bounds.
    pub fn set(&mut self, bytes: u64) {
        let mut inner = self.store.lock();
        inner.bytes.give(&self.tenant, self.bytes);
        inner.bytes.add(&self.tenant, bytes);
        self.bytes = bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut inner = self.store.lock();
        inner.files.give(&self.tenant, self.files);
        inner.bytes.give(&self.tenant, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::{Config, ConfigSources, Overrides};

    fn store(folder: &Path, max_files: usize, max_bytes: u64) -> Arc<FileStore> {
        let env = vec![("HOME".to_owned(), "/home/u".to_owned())];
        let config = Config::load_from(&ConfigSources { env, ..Default::default() }, &Overrides::default()).unwrap();
        Arc::new(FileStore::open(folder, &Storage { max_files, max_bytes, ..config.storage }).unwrap())
    }

    fn put(store: &Arc<FileStore>, tenant: &str, size: usize) -> Result<FileRecord, ApiError> {
        let mut reserved = store.reserve(tenant, 1)?;
        reserved.grow(size as u64)?;
        let entry = FileRecord { bytes: size as u64, ..FileRecord::new(tenant, "a".into(), "batch") };
        let path = store.unfinished(&entry.id);
        fs::write(&path, vec![0; size]).unwrap();
        Ok(store.take(entry, &path).unwrap())
    }

    #[test]
    fn a_tenant_cannot_fill_the_shelf_for_others_and_a_restart_knows_who_has_what() {
        let folder = tempfile::tempdir().unwrap();
        let store_of_twelve = || store(folder.path(), 12, 8000);
        let first = store_of_twelve();
        let files: Vec<_> = (0..6).map(|_| put(&first, "ann", 10).unwrap()).collect();
        let error = put(&first, "ann", 10).unwrap_err();
        assert!(error.kind == Kind::StorageFull && error.message.starts_with("you have 6 files"), "{}", error.message);
        drop(first);
        let store = store_of_twelve();
        assert!(put(&store, "ann", 10).is_err() && put(&store, "bob", 10).is_ok());
        files[..2].iter().for_each(|file| store.delete(&file.id).unwrap());
        let error = put(&store, "ann", 4000).unwrap_err();
        assert!(error.message.contains("storage.max_bytes") && error.message.starts_with("your files take 40 bytes"), "{}", error.message);
        assert!(put(&store, "ann", 3900).is_ok() && put(&store, "bob", 1900).is_ok(), "a refusal has given its place back");
        // The room of a batch counts as its tenant's.
        let held = store.held("bob", 2, 5000);
        assert!(put(&store, "bob", 1).is_err() && put(&store, "carl", 1).is_err());
        drop(held);
        assert!(put(&store, "carl", 1).is_ok());
    }
}
