//! Every batch, in its folder and in memory.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::disk::{self, now};
use super::super::files::shelf::{Reserved, Shelf};
use super::super::shares::{Refused, Shares};
use super::state::Batch;
use config::Storage;
use http::error::{ApiError, Kind};

/// The number of ended batches that are kept, for each that may be unfinished.
const ENDED: usize = 100;
/// The files that a batch makes at its end.
pub const OUTPUTS: u64 = 2;
const STATE: &str = "batch.json";
const INPUT: &str = "input.jsonl";
/// What a batch holds until it has ended: its input and its results.
const HELD: [&str; 3] = [INPUT, "output.jsonl", "errors.jsonl"];
/// Seconds of a day.
const DAY: u64 = 86400;

pub struct Book {
    folder: PathBuf,
    max_ended: usize,
    keep_seconds: u64,
    /// Held while a batch's state is changed on the disk. Whoever takes it may block.
    writing: Mutex<()>,
    /// Handlers on the event loop take it, so nobody waits for the disk with it.
    inner: Mutex<Inner>,
    /// Told when a client cancels a batch.
    pub cancelled: Notify,
}

struct Inner {
    by_serial: BTreeMap<u64, Batch>,
    /// The batches that have not ended, and those that are being made.
    unfinished: Shares,
    /// The place of the next batch.
    next: u64,
    /// What each batch holds until it has ended, by the batch's id.
    held: HashMap<String, Holding>,
}

/// The input and the results of a batch, and the room that they take on the shelf of files.
struct Holding {
    input: u64,
    room: Reserved,
}

impl Inner {
    fn new(storage: &Storage) -> Self {
        let unfinished = Shares::new(storage.max_batches as u64);
        Self { by_serial: BTreeMap::new(), unfinished, next: 0, held: HashMap::new() }
    }

    fn add(&mut self, batch: Batch, held: Holding) {
        self.next = self.next.max(batch.serial + 1);
        self.held.insert(batch.object.id.clone(), held);
        self.by_serial.insert(batch.serial, batch);
    }

    fn get(&self, id: &str) -> Option<&Batch> {
        self.by_serial.values().find(|batch| batch.object.id == id)
    }
}

impl Book {
    /// Reads the batches in the folder, which is made if it is not there. What they hold counts on the shelf.
    pub fn open(folder: &Path, storage: &Storage, shelf: &Arc<Shelf>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (max_ended, keep_seconds) = (ENDED * storage.max_batches, storage.batch_days * DAY);
        let (writing, inner, cancelled) = (Mutex::default(), Mutex::new(Inner::new(storage)), Notify::new());
        let book = Self { folder: folder.to_owned(), max_ended, keep_seconds, writing, inner, cancelled };
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            match fs::read(path.join(STATE)).and_then(|text| serde_json::from_slice::<Batch>(&text).map_err(io::Error::other)) {
                Ok(batch) => {
                    let (id, has_ended) = (batch.object.id.clone(), batch.has_ended());
                    let [input, output, errors] = HELD.map(|name| path.join(name).metadata().map_or(0, |data| data.len()));
                    let outputs = if has_ended { 0 } else { OUTPUTS };
                    let room = shelf.held(&batch.tenant, outputs, input + output + errors);
                    let mut inner = book.lock();
                    if !has_ended {
                        inner.unfinished.add(&batch.tenant, 1);
                    }
                    inner.add(batch, Holding { input, room });
                    drop(inner);
                    if has_ended {
                        // It ended, and then the process did. If this fails, the next sweep tries it again.
                        let _ = book.let_go(&id);
                    }
                }
                // It was being made, or being deleted.
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(&path)?,
                Err(error) => tracing::warn!(folder = %path.display(), "the state of a batch cannot be read, so it is left alone: {error}"),
            }
        }
        Ok(book)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file of a batch.
    pub fn path(&self, id: &str, name: &str) -> PathBuf {
        self.folder.join(id).join(name)
    }

    fn write(&self, batch: &Batch) -> io::Result<()> {
        disk::write_whole(&self.path(&batch.object.id, STATE), &serde_json::to_vec(batch).map_err(io::Error::other)?)
    }

    /// Adds a batch whose input is the file `input`. Its content stays if the file is deleted, so it takes room of its own.
    /// Once this returns, a loss of power loses nothing of the batch. Blocks.
    ///
    /// # Errors
    /// As many batches are unfinished as may be, or the tenant has its share of them, or the disk refuses.
    pub fn create(&self, mut batch: Batch, input: &Path, room: Reserved) -> Result<Batch, ApiError> {
        let mut inner = self.lock();
        inner.unfinished.take(&batch.tenant, 1).map_err(|refused| too_many(refused, inner.unfinished.taken()))?;
        batch.serial = inner.next;
        inner.next += 1;
        drop(inner);
        let folder = self.folder.join(&batch.object.id);
        let made = fs::create_dir(&folder)
            .and_then(|()| disk::link_or_copy(input, &folder.join(INPUT)))
            .and_then(|()| self.write(&batch))
            .and_then(|()| disk::sync_folder(&self.folder));
        if let Err(error) = made {
            self.lock().unfinished.give(&batch.tenant, 1);
            // If this fails, the next start removes it.
            let _ = disk::remove(&folder.join(STATE)).and_then(|()| fs::remove_dir_all(&folder));
            return Err(disk::refused(&error, "keeping the batch"));
        }
        self.lock().add(batch.clone(), Holding { input: room.num_bytes(), room });
        Ok(batch)
    }

    pub fn get(&self, id: &str) -> Option<Batch> {
        self.lock().get(id).cloned()
    }

    /// The batches of a tenant, in the order of their arrival.
    pub fn list(&self, tenant: &str) -> Vec<Batch> {
        self.lock().by_serial.values().filter(|batch| batch.tenant == tenant).cloned().collect()
    }

    /// The batches that have something to do, in the order of their arrival.
    pub fn unfinished(&self) -> Vec<String> {
        self.lock().by_serial.values().filter(|batch| !batch.has_ended()).map(|batch| batch.object.id.clone()).collect()
    }

    /// Changes a batch, on the disk first. `change` returns whether there is a change. Returns the batch as it then is. Blocks.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Batch) -> bool) -> io::Result<Option<Batch>> {
        let _writing = self.lock_writing();
        let Some(before) = self.get(id) else { return Ok(None) };
        let mut changed = before.clone();
        if !change(&mut changed) {
            return Ok(Some(before));
        }
        self.write(&changed)?;
        let mut inner = self.lock();
        if changed.has_ended() && !before.has_ended() {
            inner.unfinished.give(&before.tenant, 1);
        }
        if let Some(batch) = inner.by_serial.get_mut(&before.serial) {
            if changed.object.request_counts == before.object.request_counts {
                // Lines may have ended in the meantime.
                changed.object.request_counts = batch.object.request_counts.clone();
            }
            *batch = changed.clone();
        }
        Ok(Some(changed))
    }

    /// Counts the lines that are done, in memory only: after a crash they are counted again. `results`: their size in bytes.
    pub fn count(&self, id: &str, completed: usize, failed: usize, results: u64) {
        let mut inner = self.lock();
        if let Some(batch) = inner.by_serial.values_mut().find(|batch| batch.object.id == id) {
            (batch.object.request_counts.completed, batch.object.request_counts.failed) = (completed, failed);
        }
        if let Some(held) = inner.held.get_mut(id) {
            held.room.set(held.input + results);
        }
    }

    /// Takes room for `more` bytes of a batch's results, which [`Book::count`] counts once they are written.
    ///
    /// # Errors
    /// There is no room, or the batch's tenant has its share.
    pub fn make_room(&self, id: &str, more: u64) -> Result<(), ApiError> {
        self.lock().held.get_mut(id).map_or(Ok(()), |held| held.room.grow(more))
    }

    /// Removes the input and the results of a batch that has ended, so that their room is free. Blocks.
    pub fn let_go(&self, id: &str) -> io::Result<()> {
        HELD.iter().try_for_each(|name| disk::remove(&self.path(id, name)))?;
        self.lock().held.remove(id);
        Ok(())
    }

    /// Forgets the batches that ended long ago, and the oldest of whoever has most if there are too many. Blocks.
    pub fn sweep(&self) -> io::Result<()> {
        let _writing = self.lock_writing();
        let ended: Vec<Ended> = {
            let inner = self.lock();
            let ended = inner.by_serial.iter().filter_map(|(serial, batch)| {
                Some(Ended { serial: *serial, id: batch.object.id.clone(), tenant: batch.tenant.clone(), at: batch.ended_at()? })
            });
            ended.collect()
        };
        let surplus = surplus(&ended, self.max_ended);
        for (i, Ended { serial, id, at, .. }) in ended.iter().enumerate() {
            if surplus.contains(&i) || at + self.keep_seconds <= now() {
                let folder = self.folder.join(id);
                // Without its state, the folder is removed at the next start.
                disk::remove(&folder.join(STATE))?;
                fs::remove_dir_all(&folder)?;
                let mut inner = self.lock();
                inner.by_serial.remove(serial);
                inner.held.remove(id);
            } else if self.lock().held.contains_key(id) {
                // What it held could not be removed when it ended.
                self.let_go(id)?;
            }
        }
        Ok(())
    }
}

fn too_many(refused: Refused, unfinished: u64) -> ApiError {
    let message = match refused {
        Refused::Full => format!("{unfinished} batches are unfinished (storage.max_batches): wait for one to end"),
        Refused::Share { own, free } => {
            format!(
                "{own} of your batches are unfinished, and {free} places are left for others (storage.max_batches): wait for one to end"
            )
        }
    };
    ApiError::new(Kind::QueueFull, message)
}

struct Ended {
    serial: u64,
    id: String,
    tenant: String,
    /// Unix seconds.
    at: u64,
}

/// The places in `ended` of those beyond the `max` that are kept: the oldest of whoever has most. So nobody displaces what others may still
/// want to look at.
fn surplus(ended: &[Ended], max: usize) -> HashSet<usize> {
    let mut by_tenant: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (i, batch) in ended.iter().enumerate() {
        by_tenant.entry(&batch.tenant).or_default().push_back(i);
    }
    let take = |_| by_tenant.values_mut().max_by_key(|own| own.len())?.pop_front();
    (max..ended.len()).map_while(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_ended_batches_loses_the_oldest() {
        let ended = |tenants: &str| -> Vec<Ended> {
            let made = tenants.chars().map(|tenant| Ended { serial: 0, id: String::new(), tenant: tenant.into(), at: 0 });
            made.collect()
        };
        let gone = |tenants: &str, max: usize| {
            let mut gone: Vec<_> = surplus(&ended(tenants), max).into_iter().collect();
            gone.sort_unstable();
            gone
        };
        assert!(gone("baaaaab", 7).is_empty());
        assert_eq!(gone("baaaaab", 4), [1, 2, 3], "those of `b` stay, though one is the oldest");
        assert_eq!(gone("aaaa", 1), [0, 1, 2]);
        assert_eq!(gone("ab", 0), [0, 1]);
    }
}
