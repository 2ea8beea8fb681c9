//! [`AdapterStore`]: adapters that were read from their files. They stay in the host's memory within a bound, the latest used ones first.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::active::{ActiveAdapter, AdapterChoice, AdapterFault, HeldAdapter};
use super::base_weights::BaseWeights;
use super::stamp::Stamp;
use adapters::{AdapterError, OpenAdapter};
use metrics::AdapterMetrics;
use model::Weights;
use scheduler::HostAdapter;

/// How long an adapter is used without looking whether its file has changed.
const FRESH: Duration = Duration::from_secs(1);
/// The most adapters that are read at once. Reading takes memory before the size is known exactly.
const MAX_READS: usize = 4;
/// How often a request that waits for room looks again.
const LOOK: Duration = Duration::from_millis(10);

/// The memory for adapters. Shared by all models of a process.
pub struct AdapterStore {
    /// The most memory of all adapters together [bytes].
    most: u64,
    open: Opener,
    state: Mutex<State>,
}

/// Reads an adapter and fits it to a model. Tests use their own.
type Opener = Box<dyn Fn(&Path, &Weights) -> Result<OpenAdapter, AdapterError> + Send + Sync>;

#[derive(Default)]
struct State {
    entries: HashMap<Key, Entry>,
    reads: HashMap<Key, Arc<Read>>,
    /// Counts uses, to order them.
    clock: u64,
}

/// A file for a loaded model. The address of a model is its own as long as an entry or a read has a reference to it.
type Key = (usize, PathBuf);

struct Entry {
    base: Weak<BaseWeights>,
    held: HeldAdapter,
    bytes: u64,
    stamp: Stamp,
    looked: Instant,
    used: u64,
}

/// A file that is being read or looked at. Others that want it wait for the end.
struct Read {
    /// The memory that is set aside for it [bytes].
    reserved: Mutex<u64>,
    outcome: Mutex<Option<Result<HeldAdapter, AdapterFault>>>,
    ended: watch::Sender<bool>,
    _base: Weak<BaseWeights>,
}

/// What a request for an adapter does next.
enum Step {
    Ready(HeldAdapter),
    /// Read the file and call [`AdapterStore::settle`].
    Read(Arc<Read>),
    Wait(Arc<Read>),
    /// Too many files are being read.
    Busy,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AdapterStore {
    pub fn new(most: u64) -> Arc<Self> {
        Self::with_opener(most, Box::new(adapters::open))
    }

    fn with_opener(most: u64, open: Opener) -> Arc<Self> {
        Arc::new(Self { most, open, state: Mutex::default() })
    }

    /// The adapters, if all are in memory and none has to be looked at again. Never waits.
    pub fn ready(&self, base: &Arc<BaseWeights>, choices: &[AdapterChoice]) -> Option<Arc<[ActiveAdapter]>> {
        let mut state = lock(&self.state);
        let ready = |choice: &AdapterChoice| Some(active(choice, state.take(&key(base, &choice.path))?));
        choices.iter().map(ready).collect()
    }

    /// The adapters, read from their files where needed on threads that may block. Waits for memory until `deadline`.
    ///
    /// # Errors
    /// An adapter cannot be read or does not fit the model, or there is no memory for it.
    pub async fn get(
        self: &Arc<Self>,
        base: &Arc<BaseWeights>,
        choices: &[AdapterChoice],
        deadline: Instant,
    ) -> Result<Arc<[ActiveAdapter]>, AdapterFault> {
        let mut all = Vec::with_capacity(choices.len());
        for choice in choices {
            let held = loop {
                match self.begin(base, &choice.path) {
                    Step::Ready(held) => break held,
                    Step::Read(read) => {
                        let (store, base, choice) = (self.clone(), base.clone(), choice.clone());
                        // The read goes on if the client leaves, because others may wait for it.
                        let work = move || store.fill(&base, &choice, &read, deadline);
                        break tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(failed()))?;
                    }
                    Step::Wait(read) => {
                        let mut ended = read.ended.subscribe();
                        let _ = ended.wait_for(|ended| *ended).await;
                        // Nothing is lost if the outcome is gone: the next round asks again.
                        if let Some(outcome) = lock(&read.outcome).clone() {
                            break outcome?;
                        }
                    }
                    Step::Busy => tokio::time::sleep(LOOK).await,
                }
            };
            all.push(active(choice, held));
        }
        Ok(all.into())
    }

    /// Like [`AdapterStore::get`], for callers outside of tasks.
    ///
    /// # Errors
    /// As for [`AdapterStore::get`].
    pub fn get_blocking(
        &self,
        base: &Arc<BaseWeights>,
        choices: &[AdapterChoice],
        deadline: Instant,
    ) -> Result<Arc<[ActiveAdapter]>, AdapterFault> {
        let get = |choice: &AdapterChoice| loop {
            match self.begin(base, &choice.path) {
                Step::Ready(held) => return Ok(active(choice, held)),
                Step::Read(read) => return Ok(active(choice, self.fill(base, choice, &read, deadline)?)),
                Step::Wait(_) | Step::Busy => std::thread::sleep(LOOK),
            }
        };
        choices.iter().map(get).collect()
    }

    /// Drops adapters of models that are not loaded any more.
    pub fn sweep(&self) {
        let mut state = lock(&self.state);
        state.entries.retain(|_, entry| entry.base.strong_count() > 0);
        state.report();
    }

    fn begin(&self, base: &Arc<BaseWeights>, path: &Path) -> Step {
        let (mut state, key) = (lock(&self.state), key(base, path));
        if let Some(held) = state.take(&key) {
            return Step::Ready(held);
        }
        if let Some(read) = state.reads.get(&key) {
            return Step::Wait(read.clone());
        }
        // To look at a file that is in memory takes no turn.
        if !state.entries.contains_key(&key) && state.reads.len() >= MAX_READS {
            return Step::Busy;
        }
        let (ended, _) = watch::channel(false);
        let read = Arc::new(Read { reserved: Mutex::default(), outcome: Mutex::default(), ended, _base: Arc::downgrade(base) });
        state.reads.insert(key, read.clone());
        Step::Read(read)
    }

    /// Looks at a file, reads it if needed, and ends the read. Blocks.
    fn fill(
        &self,
        base: &Arc<BaseWeights>,
        choice: &AdapterChoice,
        read: &Arc<Read>,
        deadline: Instant,
    ) -> Result<HeldAdapter, AdapterFault> {
        let key = key(base, &choice.path);
        let fill = || self.look_or_read(base, choice, &key, (read, deadline));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fill)).unwrap_or_else(|_| Err(failed()));
        if let Err(AdapterFault::Unusable(cause)) = &outcome {
            AdapterMetrics::of_process().load_failures_total.inc();
            tracing::warn!(
                "the adapter `{}` ({}): {}",
                choice.name,
                choice.path.display().to_string().escape_debug(),
                cause.escape_debug()
            );
        }
        *lock(&read.outcome) = Some(outcome.clone());
        lock(&self.state).reads.remove(&key);
        read.ended.send_replace(true);
        outcome
    }

    fn look_or_read(
        &self,
        base: &Arc<BaseWeights>,
        choice: &AdapterChoice,
        key: &Key,
        (read, deadline): (&Read, Instant),
    ) -> Result<HeldAdapter, AdapterFault> {
        let refused = |what: String| AdapterFault::Unusable(format!("the adapter `{}` cannot be used: {what}", choice.name));
        let stamp = Stamp::of(&choice.path).map_err(refused)?;
        if let Some(held) = lock(&self.state).look(key, &stamp) {
            return Ok(held);
        }
        self.reserve(stamp.most_bytes(), read, deadline)?;
        let began = Instant::now();
        let open = |weights: &Weights| (self.open)(&choice.path, weights).map_err(|error| shown(&error));
        let OpenAdapter { adapter, kind, invocation, .. } = base.with(open).map_err(refused)?;
        let bytes = adapter.num_bytes() as u64;
        let host = Arc::new(HostAdapter::new(&choice.name, adapter));
        let held = HeldAdapter { host, kind, invocation: invocation.into(), users: Arc::default() };
        let metrics = AdapterMetrics::of_process();
        metrics.loads_total.inc();
        metrics.load_seconds.observe(began.elapsed().as_secs_f64());
        tracing::info!("the adapter `{}` was read in {:.2} s: {} MiB", choice.name, began.elapsed().as_secs_f64(), bytes >> 20);
        let entry = Entry { base: Arc::downgrade(base), held: held.clone(), bytes, stamp, looked: Instant::now(), used: 0 };
        lock(&self.state).insert(key.clone(), entry, self.most);
        Ok(held)
    }

    /// Sets memory aside, once adapters in use leave enough. One that is larger than the bound is read if no other is in use.
    fn reserve(&self, bytes: u64, read: &Read, deadline: Instant) -> Result<(), AdapterFault> {
        loop {
            {
                let mut state = lock(&self.state);
                let in_use = state.in_use();
                if in_use == 0 || in_use.saturating_add(bytes) <= self.most {
                    *lock(&read.reserved) = bytes;
                    state.evict(self.most.saturating_sub(bytes));
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                return Err(AdapterFault::NoRoom(self.most >> 20));
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl State {
    /// The adapter, if its file was looked at a short time ago.
    fn take(&mut self, key: &Key) -> Option<HeldAdapter> {
        self.clock += 1;
        let entry = self.entries.get_mut(key).filter(|entry| entry.looked.elapsed() < FRESH)?;
        entry.used = self.clock;
        Some(entry.held.clone())
    }

    /// The adapter, if its file is as it was.
    fn look(&mut self, key: &Key, stamp: &Stamp) -> Option<HeldAdapter> {
        let entry = self.entries.get_mut(key).filter(|entry| entry.stamp == *stamp)?;
        entry.looked = Instant::now();
        self.take(key)
    }

    fn insert(&mut self, key: Key, mut entry: Entry, most: u64) {
        self.clock += 1;
        entry.used = self.clock;
        self.entries.retain(|_, entry| entry.base.strong_count() > 0);
        self.entries.insert(key, entry);
        self.evict(most);
    }

    /// The memory of adapters in use and of those that are being read [bytes].
    fn in_use(&self) -> u64 {
        let used = self.entries.values().filter(|entry| entry.is_used()).map(|entry| entry.bytes);
        used.chain(self.reads.values().map(|read| *lock(&read.reserved))).fold(0, u64::saturating_add)
    }

    /// Drops adapters that nobody uses, the least recently used one first, until the rest takes at most `most` bytes.
    fn evict(&mut self, most: u64) {
        let mut all: u64 = self.entries.values().map(|entry| entry.bytes).sum();
        while all > most {
            let idle = self.entries.iter().filter(|(_, entry)| !entry.is_used()).min_by_key(|(_, entry)| entry.used);
            let Some(key) = idle.map(|(key, _)| key.clone()) else { break };
            all -= self.entries.remove(&key).map_or(0, |entry| entry.bytes);
            AdapterMetrics::of_process().evictions_total.inc();
        }
        self.report();
    }

    fn report(&self) {
        let bytes: u64 = self.entries.values().map(|entry| entry.bytes).sum();
        let metrics = AdapterMetrics::of_process();
        metrics.host_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        metrics.in_host_memory.set(self.entries.len() as i64);
    }
}

impl Entry {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.held.users) > 1
    }
}

fn key(base: &Arc<BaseWeights>, path: &Path) -> Key {
    (Arc::as_ptr(base).addr(), path.to_owned())
}

fn active(choice: &AdapterChoice, held: HeldAdapter) -> ActiveAdapter {
    ActiveAdapter { name: choice.name.clone(), held, scale: choice.scale }
}

fn failed() -> AdapterFault {
    AdapterFault::Unusable("an adapter could not be read: the server's log has the cause".into())
}

/// The error's text without folders of this machine.
fn shown(error: &AdapterError) -> String {
    let file = |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let folder = error.path.parent().map(|folder| folder.display().to_string()).filter(|folder| folder.len() > 1);
    let fault = folder.map_or_else(|| error.fault.clone(), |folder| error.fault.replace(&format!("{folder}/"), ""));
    format!("{}: {fault}", file(&error.path))
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
