//! A bounded LRU store per tenant, for clients' objects in memory. Both their number and their size are bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::error::{ApiError, Kind};

/// The largest total size of one kind of objects [bytes].
pub const MAX_BYTES: usize = 64 << 20;
/// The memory that an entry takes besides its texts: ids, and places in the maps [bytes].
pub const ENTRY: usize = 512;

/// The id of an item of a response or a conversation, and the item as JSON.
pub type Item = Arc<(String, String)>;

/// An object that can be stored.
pub trait LruValue {
    /// The size in memory [bytes].
    fn num_bytes(&self) -> usize;

    /// The ids of the object's parts, by which it can be found.
    fn parts(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// Stored objects of one kind. Other tenants' objects count as missing.
pub struct TenantLru<T> {
    max_count: usize,
    inner: Mutex<LruState<T>>,
}

struct LruEntry<T> {
    thing: Arc<T>,
    num_bytes: usize,
    /// When the object was stored and last used, on the clock of all tenants.
    came: u64,
    used: u64,
}

/// The objects of a tenant.
struct TenantEntries<T> {
    by_id: HashMap<String, LruEntry<T>>,
    /// Maps each part's id to the ids of the objects that contain it. An answer that a client sends back is part of two objects.
    by_part: HashMap<String, Vec<String>>,
    /// The id of each object, by the time of its last use.
    by_use: BTreeMap<u64, String>,
    num_bytes: usize,
}

struct LruState<T> {
    /// The objects of each tenant, by its name.
    tenants: HashMap<String, TenantEntries<T>>,
    /// Counts uses, as a clock.
    clock: u64,
    /// The sums over all tenants.
    count: usize,
    num_bytes: usize,
}

impl<T> Default for TenantEntries<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), by_part: HashMap::new(), by_use: BTreeMap::new(), num_bytes: 0 }
    }
}

impl<T> Default for LruState<T> {
    fn default() -> Self {
        Self { tenants: HashMap::new(), clock: 0, count: 0, num_bytes: 0 }
    }
}

impl<T: LruValue> TenantEntries<T> {
    fn remove(&mut self, id: &str) -> Option<LruEntry<T>> {
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

    fn add(&mut self, id: &str, entry: LruEntry<T>) {
        self.num_bytes += entry.num_bytes;
        for part in entry.thing.parts() {
            self.by_part.entry(part.to_owned()).or_default().push(id.to_owned());
        }
        self.by_use.insert(entry.used, id.to_owned());
        self.by_id.insert(id.to_owned(), entry);
    }

    /// Returns an object and marks it as used.
    fn used(&mut self, id: &str, now: u64) -> Option<Arc<T>> {
        let entry = self.by_id.get_mut(id)?;
        self.by_use.remove(&entry.used);
        entry.used = now;
        self.by_use.insert(now, id.to_owned());
        Some(entry.thing.clone())
    }
}

impl<T: LruValue> LruState<T> {
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn add(&mut self, tenant: &str, id: &str, entry: LruEntry<T>) {
        (self.count, self.num_bytes) = (self.count + 1, self.num_bytes + entry.num_bytes);
        self.tenants.entry(tenant.to_owned()).or_default().add(id, entry);
    }

    fn remove(&mut self, tenant: &str, id: &str) -> Option<LruEntry<T>> {
        let entries = self.tenants.get_mut(tenant)?;
        let entry = entries.remove(id)?;
        if entries.by_id.is_empty() {
            self.tenants.remove(tenant);
        }
        (self.count, self.num_bytes) = (self.count - 1, self.num_bytes - entry.num_bytes);
        Some(entry)
    }

    fn has(&self, tenant: &str, id: &str) -> bool {
        self.tenants.get(tenant).is_some_and(|entries| entries.by_id.contains_key(id))
    }

    /// Removes the least recently used object of the tenant that has the most, by the given measure. So no tenant displaces what others
    /// have stored.
    fn remove_unused(&mut self, measure: fn(&TenantEntries<T>) -> usize) -> Option<LruEntry<T>> {
        let (tenant, entries) = self.tenants.iter().max_by_key(|(_, entries)| measure(entries))?;
        let (tenant, id) = (tenant.clone(), entries.by_use.first_key_value()?.1.clone());
        self.remove(&tenant, &id)
    }

    /// Removes least recently used objects until the bounds hold.
    fn bound(&mut self, max_count: usize) -> Vec<LruEntry<T>> {
        let mut gone = Vec::new();
        while self.count > max_count {
            gone.extend(self.remove_unused(|entries| entries.by_id.len()));
        }
        while self.num_bytes > MAX_BYTES {
            gone.extend(self.remove_unused(|entries| entries.num_bytes));
        }
        gone
    }
}

/// The error for an object that does not fit next to the objects of others.
pub fn too_large() -> ApiError {
    let message =
        format!("what clients keep in the server's memory would take more than {MAX_BYTES} bytes: keep less, or delete something");
    ApiError::new(Kind::StorageFull, message)
}

impl<T: LruValue> TenantLru<T> {
    pub fn new(max_count: usize) -> Self {
        Self { max_count, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, LruState<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an object, and replaces one with the same id. Returns whether it was stored, since the bounds may leave no room for it.
    pub fn insert(&self, tenant: &str, id: &str, thing: T) -> bool {
        let num_bytes = thing.num_bytes();
        let mut inner = self.lock();
        let (now, old) = (inner.now(), inner.remove(tenant, id));
        inner.add(tenant, id, LruEntry { thing: Arc::new(thing), num_bytes, came: now, used: now });
        let gone = inner.bound(self.max_count);
        let is_kept = inner.has(tenant, id);
        drop(inner);
        // Objects are freed after the lock is released.
        drop((old, gone));
        is_kept
    }

    /// Returns an object and marks it as used.
    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<T>> {
        let mut inner = self.lock();
        let now = inner.now();
        inner.tenants.get_mut(tenant)?.used(id, now)
    }

    /// Returns the object that has a part with this id.
    pub fn whole_of(&self, tenant: &str, part: &str) -> Option<Arc<T>> {
        let mut inner = self.lock();
        let now = inner.now();
        let entries = inner.tenants.get_mut(tenant)?;
        let id = entries.by_part.get(part)?.last()?.clone();
        entries.used(&id, now)
    }

    /// Lists the objects of a tenant, in the order in which they were stored.
    pub fn list(&self, tenant: &str) -> Vec<Arc<T>> {
        let inner = self.lock();
        let Some(entries) = inner.tenants.get(tenant) else { return Vec::new() };
        let mut all: Vec<_> = entries.by_id.values().map(|entry| (entry.came, entry.thing.clone())).collect();
        drop(inner);
        all.sort_unstable_by_key(|(came, _)| *came);
        all.into_iter().map(|(_, thing)| thing).collect()
    }

    /// Replaces an object by the result of `change`. Returns `None` if there is no such object. Nothing changes on an error, or if there
    /// would be no room for the new object.
    pub fn change(&self, tenant: &str, id: &str, change: impl FnOnce(&T) -> Result<T, ApiError>) -> Option<Result<Arc<T>, ApiError>> {
        let mut inner = self.lock();
        let thing = match change(&inner.tenants.get(tenant)?.by_id.get(id)?.thing) {
            Ok(changed) => Arc::new(changed),
            Err(error) => return Some(Err(error)),
        };
        let (now, num_bytes) = (inner.now(), thing.num_bytes());
        let old = inner.remove(tenant, id)?;
        inner.add(tenant, id, LruEntry { thing: thing.clone(), num_bytes, came: old.came, used: now });
        let gone = inner.bound(self.max_count);
        let is_kept = inner.has(tenant, id);
        let mut back = Some(old);
        if !is_kept {
            // The old object fits again, because nothing was stored in between.
            back.take().into_iter().for_each(|old| inner.add(tenant, id, old));
        }
        drop(inner);
        drop((back, gone));
        Some(if is_kept { Ok(thing) } else { Err(too_large()) })
    }

    /// Updates the size of an object that has changed.
    pub fn measure(&self, tenant: &str, id: &str) {
        let mut inner = self.lock();
        let Some(entry) = inner.remove(tenant, id) else { return };
        let num_bytes = entry.thing.num_bytes();
        inner.add(tenant, id, LruEntry { num_bytes, ..entry });
        let gone = inner.bound(self.max_count);
        drop(inner);
        drop(gone);
    }

    /// Deletes an object of a tenant. Returns whether it was stored.
    pub fn delete(&self, tenant: &str, id: &str) -> bool {
        let removed = self.lock().remove(tenant, id);
        removed.is_some()
    }

    /// Checks the sums, and panics if one is wrong.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let inner = self.lock();
        let sum = |of: fn(&TenantEntries<T>) -> usize| inner.tenants.values().map(of).sum::<usize>();
        assert_eq!(inner.num_bytes, sum(|entries| entries.by_id.values().map(|entry| entry.num_bytes).sum()));
        assert_eq!((inner.num_bytes, inner.count), (sum(|entries| entries.num_bytes), sum(|entries| entries.by_use.len())));
        assert_eq!(inner.count, sum(|entries| entries.by_id.len()));
        let parts = sum(|entries| entries.by_id.values().map(|entry| entry.thing.parts().len()).sum());
        assert_eq!(sum(|entries| entries.by_part.values().map(Vec::len).sum()), parts);
        inner.num_bytes
    }
}
