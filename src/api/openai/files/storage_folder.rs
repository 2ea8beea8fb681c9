//! The folder of files and batches. Only one process at a time uses it, and it is opened on first use.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::super::batches::store::BatchStore;
use super::super::disk;
use super::store::FileStore;
use config::Storage;
use http::error::{ApiError, Kind};
use http::state::off_loop;

/// The contents of the folder.
pub struct StorageFolder {
    pub files: Arc<FileStore>,
    pub batches: Arc<BatchStore>,
    /// A lock on the folder. As long as it is open, no other process can use the folder.
    _lock: File,
}

/// The folder, which is opened on first use.
pub struct LazyStorage {
    pub storage: Storage,
    opened: Mutex<Option<Arc<StorageFolder>>>,
    /// Notified when there is new work for the task that runs batches.
    pub wake: Notify,
}

impl LazyStorage {
    pub fn new(storage: Storage) -> Self {
        Self { storage, opened: Mutex::default(), wake: Notify::new() }
    }

    /// Returns the folder, if it is open.
    pub fn get(&self) -> Option<Arc<StorageFolder>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the folder unless it is open. Blocks.
    fn open(&self) -> Result<Arc<StorageFolder>, ApiError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &*opened {
            return Ok(folder.clone());
        }
        if self.storage.folder.as_os_str().is_empty() {
            let message = "the server has no folder for files: its operator can set storage.folder";
            return Err(ApiError::new(Kind::StorageGone, message));
        }
        let folder = StorageFolder::open(&self.storage).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                let message = "another server uses the folder of files: its operator can set another storage.folder";
                return ApiError::new(Kind::StorageGone, message);
            }
            tracing::error!(folder = %self.storage.folder.display(), "the folder of files cannot be used: {error}");
            ApiError::new(Kind::StorageGone, "the folder of files cannot be used: the server's log has the cause")
        })?;
        Ok(opened.insert(Arc::new(folder)).clone())
    }

    /// Returns the folder for a request, and opens it if necessary.
    pub async fn need(self: &Arc<Self>) -> Result<Arc<StorageFolder>, ApiError> {
        if let Some(folder) = self.get() {
            return Ok(folder);
        }
        let rooms = self.clone();
        off_loop(move || rooms.open()).await?
    }

    /// Opens the folder if an earlier process has created it, since its batches may have to continue. Blocks.
    pub fn resume(&self) -> Option<Arc<StorageFolder>> {
        let is_there = !self.storage.folder.as_os_str().is_empty() && self.storage.folder.is_dir();
        is_there.then(|| self.open().ok()).flatten()
    }
}

impl StorageFolder {
    fn open(storage: &Storage) -> io::Result<Self> {
        let folder: &Path = &storage.folder;
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        let files = Arc::new(FileStore::open(&folder.join("files"), storage)?);
        let batches = Arc::new(BatchStore::open(&folder.join("batches"), storage, &files)?);
        // Syncs the names of the two subfolders, which may be new.
        disk::sync_folder(folder)?;
        Ok(Self { files, batches, _lock: lock })
    }
}
