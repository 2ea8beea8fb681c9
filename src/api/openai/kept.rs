//! What clients keep in memory: a bounded number of things, in a bounded amount of memory. The least recently used go first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::error::{ApiError, Kind};

/// The bound on the total size of one kind of things. In bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// What an entry takes besides its texts: ids, and places in the maps. In bytes.
pub const ENTRY: usize = 512;

/// The id of an item of a response or a conversation, and the item as JSON.
pub type Item = Arc<(String, String)>;

/// Something that is kept.
pub trait Keepable {
    /// The size in memory.
    fn num_bytes(&self) -> usize;

    /// The ids of its parts, by which it can be found.
    fn parts(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Things of one kind, each of a tenant. Another tenant's is not there.
pub struct Kept<T> {
    max_count: usize,
    inner: Mutex<Inner<T>>,
}

struct Entry<T> {
    thing: Arc<T>,
    num_bytes: usize,
    /// When it came and when it was last used, on the clock of all shelves.
    came: u64,
    used: u64,
}

/// What a tenant has stored.
struct Shelf<T> {
    by_id: HashMap<String, Entry<T>>,
    /// Maps each part's id to the ids of its wholes: an answer that a client sends back is a part of two.
    by_part: HashMap<String, Vec<String>>,
    /// The id of each thing by the time of its last use.
    by_use: BTreeMap<u64, String>,
    num_bytes: usize,
}

struct Inner<T> {
    /// By the tenant's name.
    shelves: HashMap<String, Shelf<T>>,
    /// Counts uses.
    clock: u64,
    /// Sums over all shelves.
    count: usize,
    num_bytes: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), by_part: HashMap::new(), by_use: BTreeMap::new(), num_bytes: 0 }
    }
}

impl<T> Default for Inner<T> {
    fn default() -> Self {
        Self { shelves: HashMap::new(), clock: 0, count: 0, num_bytes: 0 }
    }
}

impl<T: Keepable> Shelf<T> {
    fn remove(&mut self, id: &str) -> Option<Entry<T>> {
        let entry = self.by_id.remove(id)?;
        self.num_bytes -= entry.num_bytes;
        self.by_use.remove(&entry.used);
        for part in entry.thing.parts() {
            let wholes = self.by_part.get_mut(part).map(|wholes| {
                wholes.retain(|whole| whole != id);
                wholes.len()
            });
            if wholes == Some(0) {
                self.by_part.remove(part);
            }
        }
        Some(entry)
    }

    fn add(&mut self, id: &str, entry: Entry<T>) {
        self.num_bytes += entry.num_bytes;
        for part in entry.thing.parts() {
            self.by_part.entry(part.to_owned()).or_default().push(id.to_owned());
        }
        self.by_use.insert(entry.used, id.to_owned());
        self.by_id.insert(id.to_owned(), entry);
    }

    /// A thing, which is used now.
    fn used(&mut self, id: &str, now: u64) -> Option<Arc<T>> {
        let entry = self.by_id.get_mut(id)?;
        self.by_use.remove(&entry.used);
        entry.used = now;
        self.by_use.insert(now, id.to_owned());
        Some(entry.thing.clone())
    }
}

impl<T: Keepable> Inner<T> {
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn add(&mut self, tenant: &str, id: &str, entry: Entry<T>) {
        (self.count, self.num_bytes) = (self.count + 1, self.num_bytes + entry.num_bytes);
        self.shelves.entry(tenant.to_owned()).or_default().add(id, entry);
    }

    fn remove(&mut self, tenant: &str, id: &str) -> Option<Entry<T>> {
        let shelf = self.shelves.get_mut(tenant)?;
        let entry = shelf.remove(id)?;
        if shelf.by_id.is_empty() {
            self.shelves.remove(tenant);
        }
        (self.count, self.num_bytes) = (self.count - 1, self.num_bytes - entry.num_bytes);
        Some(entry)
    }

    fn has(&self, tenant: &str, id: &str) -> bool {
        self.shelves.get(tenant).is_some_and(|shelf| shelf.by_id.contains_key(id))
    }

    /// Takes what was not used for longest of the tenant that has stored most, by the given measure. So nobody displaces what others
    /// have stored.
    fn remove_unused(&mut self, measure: fn(&Shelf<T>) -> usize) -> Option<Entry<T>> {
        let (tenant, shelf) = self.shelves.iter().max_by_key(|(_, shelf)| measure(shelf))?;
        let (tenant, id) = (tenant.clone(), shelf.by_use.first_key_value()?.1.clone());
        self.remove(&tenant, &id)
    }

    /// Drops what was not used for longest until the bounds hold.
    fn bound(&mut self, max_count: usize) -> Vec<Entry<T>> {
        let mut gone = Vec::new();
        while self.count > max_count {
            gone.extend(self.remove_unused(|shelf| shelf.by_id.len()));
        }
        while self.num_bytes > MAX_BYTES {
            gone.extend(self.remove_unused(|shelf| shelf.num_bytes));
        }
        gone
    }
}

/// The error for something that does not fit beside what others keep.
pub fn too_large() -> ApiError {
    let message =
        format!("what clients keep in the server's memory would take more than {MAX_BYTES} bytes: keep less, or delete something");
    ApiError::new(Kind::StorageFull, message)
}

impl<T: Keepable> Kept<T> {
    pub fn new(max_count: usize) -> Self {
        Self { max_count, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of a thing with the same id. Returns whether it is kept: the bounds may leave no room for it.
    pub fn insert(&self, tenant: &str, id: &str, thing: T) -> bool {
        let num_bytes = thing.num_bytes();
        let mut inner = self.lock();
        let (now, old) = (inner.now(), inner.remove(tenant, id));
        inner.add(tenant, id, Entry { thing: Arc::new(thing), num_bytes, came: now, used: now });
        let gone = inner.bound(self.max_count);
        let is_kept = inner.has(tenant, id);
        drop(inner);
        // What is gone is freed after the lock.
        drop((old, gone));
        is_kept
    }

    /// A thing, which is used by that.
    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<T>> {
        let mut inner = self.lock();
        let now = inner.now();
        inner.shelves.get_mut(tenant)?.used(id, now)
    }

    /// The thing that has a part of this id.
    pub fn whole_of(&self, tenant: &str, part: &str) -> Option<Arc<T>> {
        let mut inner = self.lock();
        let now = inner.now();
        let shelf = inner.shelves.get_mut(tenant)?;
        let id = shelf.by_part.get(part)?.last()?.clone();
        shelf.used(&id, now)
    }

    /// What a tenant has stored, in the order of its arrival.
    pub fn list(&self, tenant: &str) -> Vec<Arc<T>> {
        let inner = self.lock();
        let Some(shelf) = inner.shelves.get(tenant) else { return Vec::new() };
        let mut all: Vec<_> = shelf.by_id.values().map(|entry| (entry.came, entry.thing.clone())).collect();
        drop(inner);
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().map(|(_, thing)| thing).collect()
    }

    /// Replaces a thing by what `change` makes of it. `None`: it is not there. An error changes nothing, and so does a change that would
    /// leave no room for the thing itself.
    pub fn change(&self, tenant: &str, id: &str, change: impl FnOnce(&T) -> Result<T, ApiError>) -> Option<Result<Arc<T>, ApiError>> {
        let mut inner = self.lock();
        let thing = match change(&inner.shelves.get(tenant)?.by_id.get(id)?.thing) {
            Ok(changed) => Arc::new(changed),
            Err(error) => return Some(Err(error)),
        };
        let (now, num_bytes) = (inner.now(), thing.num_bytes());
        let old = inner.remove(tenant, id)?;
        inner.add(tenant, id, Entry { thing: thing.clone(), num_bytes, came: old.came, used: now });
        let gone = inner.bound(self.max_count);
        let is_kept = inner.has(tenant, id);
        let mut back = Some(old);
        if !is_kept {
            // What was there fits again, because nothing else has come.
            back.take().into_iter().for_each(|old| inner.add(tenant, id, old));
        }
        drop(inner);
        drop((back, gone));
        Some(if is_kept { Ok(thing) } else { Err(too_large()) })
    }

    /// Counts a thing again whose size has changed.
    pub fn measure(&self, tenant: &str, id: &str) {
        let mut inner = self.lock();
        let Some(entry) = inner.remove(tenant, id) else { return };
        let num_bytes = entry.thing.num_bytes();
        inner.add(tenant, id, Entry { num_bytes, ..entry });
        let gone = inner.bound(self.max_count);
        drop(inner);
        drop(gone);
    }

    /// Deletes a thing of a tenant. Returns whether it was stored.
    pub fn delete(&self, tenant: &str, id: &str) -> bool {
        let removed = self.lock().remove(tenant, id);
        removed.is_some()
    }

    /// Panics unless the sums are right.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let inner = self.lock();
        let sum = |of: fn(&Shelf<T>) -> usize| inner.shelves.values().map(of).sum::<usize>();
        assert_eq!(inner.num_bytes, sum(|shelf| shelf.by_id.values().map(|entry| entry.num_bytes).sum()));
        assert_eq!((inner.num_bytes, inner.count), (sum(|shelf| shelf.num_bytes), sum(|shelf| shelf.by_use.len())));
        assert_eq!(inner.count, sum(|shelf| shelf.by_id.len()));
        let parts = sum(|shelf| shelf.by_id.values().map(|entry| entry.thing.parts().len()).sum());
        assert_eq!(sum(|shelf| shelf.by_part.values().map(Vec::len).sum()), parts);
        inner.num_bytes
    }
}
