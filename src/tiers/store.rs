//! [`Store`]: a folder of files with the threads that write and read them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::file::{Saved, Wanted};
use crate::folder::Folder;
use crate::key::{Identity, Key};

/// The most bytes that wait to be written.
const MAX_QUEUED: u64 = 128 << 20;
/// The most files that wait to be written.
const MAX_FILES: usize = 4096;
/// The most prompts that wait to be read.
const MAX_LOADS: usize = 256;
/// The most bytes of a prompt that are read ahead, and the most files. With few of them, the two threads wait for each other.
const AHEAD: usize = 32 << 20;
const FILES_AHEAD: usize = 32;
/// How often the folder is looked at for what other processes have done.
const LOOK: Duration = Duration::from_mins(1);
/// Nothing is written for this time after a fault of the disk.
const PAUSE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 30 });

/// A file that was read.
#[derive(Debug)]
pub struct Loaded {
    bytes: Vec<u8>,
    payload: Range<usize>,
}

impl Loaded {
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.payload.clone()]
    }
}

/// The files that a prompt asks for, in order.
struct Load {
    wanted: Vec<Wanted>,
    loaded: Sender<Loaded>,
}

/// Files of KV blocks in a folder. No method waits for the disk, except [`Store::of`] and the drop, which waits until all is written.
#[derive(Debug)]
pub struct Store {
    folder: Arc<Folder>,
    /// Bytes that wait to be written.
    queued: Arc<AtomicU64>,
    /// Bytes per second of the latest reads. 0 before the first one.
    speed: Arc<AtomicU64>,
    saves: Option<Sender<Saved>>,
    loads: Sender<Load>,
    writer: Option<JoinHandle<()>>,
}

impl Store {
    /// The store of a folder, which all models of the process share. `limit`: the most bytes of all files.
    ///
    /// # Errors
    /// The system has no thread for it. A folder that cannot be used is no error: it is empty then.
    pub fn of(path: &Path, limit: u64) -> std::io::Result<Arc<Self>> {
        static STORES: Mutex<Option<HashMap<std::path::PathBuf, Weak<Store>>>> = Mutex::new(None);
        let mut stores = STORES.lock().unwrap_or_else(PoisonError::into_inner);
        let stores = stores.get_or_insert_default();
        if let Some(store) = stores.get(path).and_then(Weak::upgrade).filter(|store| store.folder.limit() == limit) {
            return Ok(store);
        }
        let store = Arc::new(Self::open(path, limit)?);
        stores.insert(path.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }

    fn open(path: &Path, limit: u64) -> std::io::Result<Self> {
        let folder = Arc::new(Folder::new(path.to_owned(), limit));
        if let Err(error) = folder.scan() {
            folder.warn("prompts are not kept in", &error);
        }
        let (queued, speed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (saves, to_write) = bounded(MAX_FILES);
        let (loads, to_read) = bounded(MAX_LOADS);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| std::thread::Builder::new().name(name.into()).spawn(run);
        let writer = spawn("cache-write", {
            let (folder, queued) = (folder.clone(), queued.clone());
            Box::new(move || write_all(&folder, &to_write, &queued))
        })?;
        spawn("cache-read", {
            let (folder, speed) = (folder.clone(), speed.clone());
            Box::new(move || read_all(&folder, &to_read, &speed))
        })?;
        Ok(Self { folder, queued, speed, saves: Some(saves), loads, writer: Some(writer) })
    }

    /// Whether a file was there when the folder was last looked at.
    pub fn contains(&self, key: &Key) -> bool {
        self.folder.contains(key)
    }

    /// Whether `bytes` more bytes may wait to be written.
    pub fn has_room(&self, bytes: usize) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        queued == 0 || queued + bytes as u64 <= MAX_QUEUED && self.saves.as_ref().is_some_and(|saves| !saves.is_full())
    }

    /// Queues a file to be written. It is dropped if the queue is full.
    pub fn save(&self, key: Key, identity: Identity, payload: Vec<u8>) {
        let bytes = payload.len() as u64;
        self.queued.fetch_add(bytes, Ordering::Relaxed);
        let saved = Saved { key, identity, payload };
        if self.saves.as_ref().is_none_or(|saves| saves.try_send(saved).is_err()) {
            self.queued.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Queues files to be read. They come in order, and none comes behind one that cannot be used. None if too many prompts wait.
    pub fn load(&self, wanted: Vec<Wanted>) -> Option<Receiver<Loaded>> {
        let largest = wanted.iter().map(|wanted| wanted.len).max().unwrap_or(0);
        let (loaded, receiver) = bounded((AHEAD / largest.max(1)).clamp(2, FILES_AHEAD));
        self.loads.try_send(Load { wanted, loaded }).ok()?;
        Some(receiver)
    }

    /// The bytes per second that were read of late. None before the first read.
    pub fn read_speed(&self) -> Option<f64> {
        Some(self.speed.load(Ordering::Relaxed)).filter(|&speed| speed > 0).map(|speed| speed as f64)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.saves = None;
        // A writer that has panicked has said so.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

fn write_all(folder: &Folder, saves: &Receiver<Saved>, queued: &AtomicU64) {
    let (mut looked, mut paused_until) = (Instant::now(), None);
    loop {
        match saves.recv_timeout(LOOK) {
            Ok(saved) => {
                if paused_until.is_none_or(|until| Instant::now() >= until)
                    && let Err(error) = folder.write(&saved)
                {
                    folder.warn("prompts are not kept in", &error);
                    paused_until = Some(Instant::now() + PAUSE);
                }
                queued.fetch_sub(saved.payload.len() as u64, Ordering::Relaxed);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if looked.elapsed() >= LOOK {
            // A fault has been told at the start, or is told at the next write.
            let _ = folder.scan();
            looked = Instant::now();
        }
    }
}

fn read_all(folder: &Folder, loads: &Receiver<Load>, speed: &AtomicU64) {
    for Load { wanted, loaded } in loads {
        let mut wanted = wanted.into_iter();
        while let Some(next) = wanted.next() {
            let start = Instant::now();
            let Some((bytes, payload)) = folder.read(&next) else {
                // What is behind it is computed, too, and written again: it may have had the same fate.
                wanted.for_each(|next| folder.forget(&next.key));
                break;
            };
            let measured = bytes.len() as f64 / start.elapsed().as_secs_f64().max(1e-6);
            let before = speed.load(Ordering::Relaxed) as f64;
            speed.store(if before == 0.0 { measured } else { before + (measured - before) / 8.0 } as u64, Ordering::Relaxed);
            if loaded.send(Loaded { bytes, payload }).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
