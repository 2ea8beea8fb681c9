//! The store of all batches, on disk and in memory.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::{self};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::super::disk::{self, now};
use super::super::files::store::{FileStore, Reserved};
use super::super::tenant_quotas::{QuotaError, TenantQuotas};
use super::state::Batch;
use config::Storage;
use http::error::{ApiError, Kind};

/// The number of ended batches that are kept per permitted unfinished one.
const ENDED: usize = 100;
/// The number of files that a batch makes when it ends.
pub const OUTPUTS: u64 = 2;
const STATE: &str = "batch.json";
const INPUT: &str = "input.jsonl";
/// The files that a batch needs until it has ended: its input and its results.
const HELD: [&str; 3] = [INPUT, "output.jsonl", "errors.jsonl"];
/// A day [s].
const DAY: u64 = 86400;

pub struct BatchStore {
    folder: PathBuf,
    max_ended: usize,
    keep_seconds: u64,
    /// Serialises changes to batches on disk. Taking this lock may block.
    writing: Mutex<()>,
    /// Handlers on the event loop take this lock, so nothing waits for the disk while holding it.
    inner: Mutex<Inner>,
    /// Notified when a client cancels a batch.
    pub cancelled: Notify,
}

struct Inner {
    by_serial: BTreeMap<u64, Batch>,
    /// The batches that have not ended, and those that are being created.
    unfinished: TenantQuotas,
    /// The number of the next batch.
    next: u64,
    /// The room that each batch takes until it has ended, by the batch's id.
    held: HashMap<String, ReservedSpace>,
}

/// The input size of a batch, and the room that its input and results take in the file store.
struct ReservedSpace {
    input: u64,
    reserved: Reserved,
}

impl Inner {
    fn new(storage: &Storage) -> Self {
        let unfinished = TenantQuotas::new(storage.max_batches as u64);
        Self { by_serial: BTreeMap::new(), unfinished, next: 0, held: HashMap::new() }
    }

    fn add(&mut self, batch: Batch, held: ReservedSpace) {
        self.next = self.next.max(batch.serial + 1);
        self.held.insert(batch.object.id.clone(), held);
        self.by_serial.insert(batch.serial, batch);
    }

    fn get(&self, id: &str) -> Option<&Batch> {
        self.by_serial.values().find(|batch| batch.object.id == id)
    }
}

impl BatchStore {
    /// Reads the batches in the folder, which is created if it does not exist. Their room is counted in the file store.
    pub fn open(folder: &Path, storage: &Storage, store: &Arc<FileStore>) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let (max_ended, keep_seconds) = (ENDED * storage.max_batches, storage.batch_days * DAY);
        let (writing, inner, cancelled) = (Mutex::default(), Mutex::new(Inner::new(storage)), Notify::new());
        let batches = Self { folder: folder.to_owned(), max_ended, keep_seconds, writing, inner, cancelled };
        for item in fs::read_dir(folder)? {
            let path = item?.path();
            match fs::read(path.join(STATE)).and_then(|text| serde_json::from_slice::<Batch>(&text).map_err(io::Error::other)) {
                Ok(batch) => {
                    let (id, has_ended) = (batch.object.id.clone(), batch.has_ended());
                    let [input, output, errors] = HELD.map(|name| path.join(name).metadata().map_or(0, |data| data.len()));
                    let outputs = if has_ended { 0 } else { OUTPUTS };
                    let reserved = store.held(&batch.tenant, outputs, input + output + errors);
                    let mut inner = batches.lock();
                    if !has_ended {
                        inner.unfinished.add(&batch.tenant, 1);
                    }
                    inner.add(batch, ReservedSpace { input, reserved });
                    drop(inner);
                    if has_ended {
                        // The batch had ended when the process stopped. If this fails, the next sweep tries again.
                        let _ = batches.let_go(&id);
                    }
                }
                // The batch was being created or deleted when the process stopped.
                Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_dir_all(&path)?,
                Err(error) => tracing::warn!(folder = %path.display(), "cannot read a batch's state, so the batch is left alone: {error}"),
            }
        }
        Ok(batches)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the path of a batch's file.
    pub fn path(&self, id: &str, name: &str) -> PathBuf {
        self.folder.join(id).join(name)
    }

    fn write(&self, batch: &Batch) -> io::Result<()> {
        disk::write_whole(&self.path(&batch.object.id, STATE), &serde_json::to_vec(batch).map_err(io::Error::other)?)
    }

    /// Adds a batch with the file `input` as its input. The batch keeps the content if the file is deleted, so it takes room of its own.
    /// Once this returns, the batch survives a power failure. Blocks.
    ///
    /// # Errors
    /// Fails if there are too many unfinished batches, if the tenant has used its share of them, or if the disk fails.
    pub fn create(&self, mut batch: Batch, input: &Path, reserved: Reserved) -> Result<Batch, ApiError> {
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
            // If this fails, the next start removes the folder.
            let _ = disk::remove(&folder.join(STATE)).and_then(|()| fs::remove_dir_all(&folder));
            return Err(disk::refused(&error, "keeping the batch"));
        }
        self.lock().add(batch.clone(), ReservedSpace { input: reserved.num_bytes(), reserved });
        Ok(batch)
    }

    pub fn get(&self, id: &str) -> Option<Batch> {
        self.lock().get(id).cloned()
    }

    /// Lists the batches of a tenant, in the order of arrival.
    pub fn list(&self, tenant: &str) -> Vec<Batch> {
        self.lock().by_serial.values().filter(|batch| batch.tenant == tenant).cloned().collect()
    }

    /// Lists the batches that have work left, in the order of arrival.
    pub fn unfinished(&self) -> Vec<String> {
        self.lock().by_serial.values().filter(|batch| !batch.has_ended()).map(|batch| batch.object.id.clone()).collect()
    }

    /// Changes a batch, on disk first. `change` returns whether it made a change. Returns the resulting batch. Blocks.
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

    /// Updates the number of lines done, in memory only: after a crash they are counted again. `results` is the size of the results
    /// [bytes].
    pub fn count(&self, id: &str, completed: usize, failed: usize, results: u64) {
        let mut inner = self.lock();
        if let Some(batch) = inner.by_serial.values_mut().find(|batch| batch.object.id == id) {
            (batch.object.request_counts.completed, batch.object.request_counts.failed) = (completed, failed);
        }
        if let Some(held) = inner.held.get_mut(id) {
            held.reserved.set(held.input + results);
        }
    }

    /// Takes room for `more` bytes of a batch's results. [`BatchStore::count`] counts them once they are written.
    ///
    /// # Errors
    /// Fails if there is no room, or if the tenant has used its share.
    pub fn make_room(&self, id: &str, more: u64) -> Result<(), ApiError> {
        self.lock().held.get_mut(id).map_or(Ok(()), |held| held.reserved.grow(more))
    }

    /// Removes the input and the results of a batch that has ended, which frees their room. Blocks.
    pub fn let_go(&self, id: &str) -> io::Result<()> {
        HELD.iter().try_for_each(|name| disk::remove(&self.path(id, name)))?;
        self.lock().held.remove(id);
        Ok(())
    }

    /// Deletes the batches that ended long ago. If there are still too many, deletes the oldest ones of the tenant with the most. Blocks.
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
                // A folder without a state is removed at the next start.
                disk::remove(&folder.join(STATE))?;
                fs::remove_dir_all(&folder)?;
                let mut inner = self.lock();
                inner.by_serial.remove(serial);
                inner.held.remove(id);
            } else if self.lock().held.contains_key(id) {
                // Its files could not be removed when the batch ended.
                self.let_go(id)?;
            }
        }
        Ok(())
    }
}

fn too_many(refused: QuotaError, unfinished: u64) -> ApiError {
    let message = match refused {
        QuotaError::Full => format!("{unfinished} batches are unfinished (storage.max_batches): wait for one to end"),
        QuotaError::Share { own, free } => {
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
    /// When the batch ended [Unix seconds].
    at: u64,
}

/// Returns the indices in `ended` to delete if only `max` batches are kept: each time the oldest one of the tenant with the most. So no
/// tenant displaces batches that another one may still want to see.
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
