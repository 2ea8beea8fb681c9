//! Every batch, in its folder and in memory.

use std::collections::BTreeMap;
use std::fs::{self};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::disk::{self, now};
use super::state::Batch;
use config::Storage;

/// The number of ended batches that are kept, for each that may be unfinished.
const ENDED: usize = 100;
const STATE: &str = "batch.json";
/// Seconds of a day.
const DAY: u64 = 86400;

pub struct Book {
    folder: PathBuf,
    max_unfinished: usize,
    keep_seconds: u64,
    by_serial: Mutex<BTreeMap<u64, Batch>>,
    /// Told when a client cancels a batch.
    pub cancelled: Notify,
}

impl Book {
    /// Reads the batches in the folder, which is made if it is not there.
    pub fn open(folder: &Path, storage: &Storage) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut by_serial = BTreeMap::new();
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            match fs::read(path.join(STATE)).and_then(|text| serde_json::from_slice::<Batch>(&text).map_err(io::Error::other)) {
                Ok(batch) => drop(by_serial.insert(batch.serial, batch)),
                // It was being made, or being deleted.
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(&path)?,
                Err(error) => tracing::warn!(folder = %path.display(), "the state of a batch cannot be read, so it is left alone: {error}"),
            }
        }
        let (max_unfinished, keep_seconds) = (storage.max_batches, storage.batch_days * DAY);
        Ok(Self { folder: folder.to_owned(), max_unfinished, keep_seconds, by_serial: Mutex::new(by_serial), cancelled: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Batch>> {
        self.by_serial.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of a batch.
    pub fn path(&self, id: &str, name: &str) -> PathBuf {
        self.folder.join(id).join(name)
    }

    fn write(&self, batch: &Batch) -> io::Result<()> {
        disk::write_whole(&self.path(&batch.object.id, STATE), &serde_json::to_vec(batch).map_err(io::Error::other)?)
    }

    /// Whether as many batches are unfinished as may be.
    pub fn is_full(&self) -> bool {
        self.lock().values().filter(|batch| !batch.has_ended()).count() >= self.max_unfinished
    }

    /// Adds a batch whose input is the file `input`. Its content stays if the file is deleted.
    pub fn create(&self, mut batch: Batch, input: &Path) -> io::Result<Batch> {
        let mut by_serial = self.lock();
        batch.serial = by_serial.last_key_value().map_or(0, |(serial, _)| serial + 1);
        let folder = self.folder.join(&batch.object.id);
        let copy = folder.join("input.jsonl");
        let made = fs::create_dir(&folder)
            // Some file systems have no hard links.
            .and_then(|()| fs::hard_link(input, &copy).or_else(|_| fs::copy(input, &copy).map(drop)))
            .and_then(|()| self.write(&batch));
        if let Err(error) = made {
            // If this fails, the next start removes it.
            let _ = fs::remove_dir_all(&folder);
            return Err(error);
        }
        by_serial.insert(batch.serial, batch.clone());
        Ok(batch)
    }

    pub fn get(&self, id: &str) -> Option<Batch> {
        self.lock().values().find(|batch| batch.object.id == id).cloned()
    }

    /// The batches of a tenant, in the order of their arrival.
    pub fn list(&self, tenant: &str) -> Vec<Batch> {
        self.lock().values().filter(|batch| batch.tenant == tenant).cloned().collect()
    }

    /// The batches that have something to do, in the order of their arrival.
    pub fn unfinished(&self) -> Vec<String> {
        self.lock().values().filter(|batch| !batch.has_ended()).map(|batch| batch.object.id.clone()).collect()
    }

    /// Changes a batch, on the disk first. `change` returns whether there is a change. Returns the batch as it then is.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Batch) -> bool) -> io::Result<Option<Batch>> {
        let mut by_serial = self.lock();
        let Some(batch) = by_serial.values_mut().find(|batch| batch.object.id == id) else { return Ok(None) };
        let mut changed = batch.clone();
        if change(&mut changed) {
            self.write(&changed)?;
            *batch = changed;
        }
        Ok(Some(batch.clone()))
    }

    /// Counts the lines that are done, in memory only: after a crash they are counted again.
    pub fn count(&self, id: &str, completed: usize, failed: usize) {
        if let Some(batch) = self.lock().values_mut().find(|batch| batch.object.id == id) {
            (batch.object.request_counts.completed, batch.object.request_counts.failed) = (completed, failed);
        }
    }

    /// Forgets the batches that ended long ago, and the oldest if there are too many.
    pub fn sweep(&self) -> io::Result<()> {
        let mut by_serial = self.lock();
        let ended: Vec<(u64, u64)> = by_serial.iter().filter_map(|(serial, batch)| Some((*serial, batch.ended_at()?))).collect();
        let too_many = ended.len().saturating_sub(ENDED * self.max_unfinished);
        for (i, (serial, at)) in ended.into_iter().enumerate() {
            if i < too_many || at + self.keep_seconds <= now() {
                let folder = self.folder.join(&by_serial[&serial].object.id);
                // Without its state, the folder is removed at the next start.
                disk::remove(&folder.join(STATE))?;
                fs::remove_dir_all(&folder)?;
                by_serial.remove(&serial);
            }
        }
        Ok(())
    }
}
