//! The folder of files and batches, which one process at a time uses. It is opened when it is first needed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use super::super::batches::book::Book;
use super::super::disk;
use super::shelf::Shelf;
use config::Storage;
use http::error::{ApiError, Kind};
use http::state::off_loop;

/// What the folder holds.
pub struct Room {
    pub files: Arc<Shelf>,
    pub batches: Arc<Book>,
    /// While it is open, no other process uses the folder.
    _lock: File,
}

/// The folder before and after it is opened.
pub struct Rooms {
    pub storage: Storage,
    opened: Mutex<Option<Arc<Room>>>,
    /// Told when there is something new for the task that runs batches.
    pub wake: Notify,
}

impl Rooms {
    pub fn new(storage: Storage) -> Self {
        Self { storage, opened: Mutex::default(), wake: Notify::new() }
    }

    /// The folder, if it is open.
    pub fn get(&self) -> Option<Arc<Room>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the folder unless it is open. Blocks.
    fn open(&self) -> Result<Arc<Room>, ApiError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = &*opened {
            return Ok(room.clone());
        }
        if self.storage.folder.as_os_str().is_empty() {
            let message = "the server has no folder for files: its operator can set storage.folder";
            return Err(ApiError::new(Kind::StorageGone, message));
        }
        let room = Room::open(&self.storage).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                let message = "another server uses the folder of files: its operator can set another storage.folder";
                return ApiError::new(Kind::StorageGone, message);
            }
            tracing::error!(folder = %self.storage.folder.display(), "the folder of files cannot be used: {error}");
            ApiError::new(Kind::StorageGone, "the folder of files cannot be used: the server's log has the cause")
        })?;
        Ok(opened.insert(Arc::new(room)).clone())
    }

    /// The folder, for a request.
    pub async fn need(self: &Arc<Self>) -> Result<Arc<Room>, ApiError> {
        if let Some(room) = self.get() {
            return Ok(room);
        }
        let rooms = self.clone();
        off_loop(move || rooms.open()).await?
    }

    /// Opens a folder that an earlier process has made, whose batches may have to go on. Blocks.
    pub fn resume(&self) -> Option<Arc<Room>> {
        let is_there = !self.storage.folder.as_os_str().is_empty() && self.storage.folder.is_dir();
        is_there.then(|| self.open().ok()).flatten()
    }
}

impl Room {
    fn open(storage: &Storage) -> io::Result<Self> {
        let folder: &Path = &storage.folder;
        fs::create_dir_all(folder)?;
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            TryLockError::Error(error) => error,
        })?;
        let files = Arc::new(Shelf::open(&folder.join("files"), storage)?);
        let batches = Arc::new(Book::open(&folder.join("batches"), storage, &files)?);
        // The names of the two folders, which may be new.
        disk::sync_folder(folder)?;
        Ok(Self { files, batches, _lock: lock })
    }
}
