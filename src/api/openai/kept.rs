//! What clients keep in memory: a bounded number of things, in a bounded amount of memory. The oldest go first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bound on the total size of one kind of things. In bytes.
pub const MAX_BYTES: usize = 64 << 20;
/// What an entry takes besides its texts: ids, and places in the maps. In bytes.
pub const ENTRY: usize = 512;

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

/// What a tenant has stored.
struct Shelf<T> {
    /// Each thing by its id, with its size.
    by_id: HashMap<String, (Arc<T>, usize)>,
    /// Maps each part's id to the ids of its wholes: an answer that a client sends back is a part of two.
    by_part: HashMap<String, Vec<String>>,
    /// Ids in the order of their arrival. May contain deleted ones.
    order: VecDeque<String>,
    num_bytes: usize,
}

struct Inner<T> {
    /// By the tenant's name.
    shelves: HashMap<String, Shelf<T>>,
    /// The sum over all shelves, of their orders' lengths and of their sizes.
    num_ordered: usize,
    num_bytes: usize,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { by_id: HashMap::new(), by_part: HashMap::new(), order: VecDeque::new(), num_bytes: 0 }
    }
}

impl<T> Default for Inner<T> {
    fn default() -> Self {
        Self { shelves: HashMap::new(), num_ordered: 0, num_bytes: 0 }
    }
}

impl<T: Keepable> Shelf<T> {
    fn remove(&mut self, id: &str) -> Option<Arc<T>> {
        let (stored, size) = self.by_id.remove(id)?;
        self.num_bytes -= size;
        for part in stored.parts() {
            let wholes = self.by_part.get_mut(part).map(|wholes| {
                wholes.retain(|whole| whole != id);
                wholes.len()
            });
            if wholes == Some(0) {
                self.by_part.remove(part);
            }
        }
        Some(stored)
    }

    fn add(&mut self, id: &str, thing: T) {
        let size = thing.num_bytes();
        self.num_bytes += size;
        for part in thing.parts() {
            self.by_part.entry(part.to_owned()).or_default().push(id.to_owned());
        }
        self.by_id.insert(id.to_owned(), (Arc::new(thing), size));
    }
}

impl<T: Keepable> Inner<T> {
    /// Takes the oldest thing of the tenant that has stored most, by the given measure. So nobody displaces what others have stored.
    fn remove_oldest(&mut self, measure: fn(&Shelf<T>) -> usize) -> Option<Arc<T>> {
        let name = self.shelves.iter().max_by_key(|(_, shelf)| measure(shelf))?.0.clone();
        let shelf = self.shelves.get_mut(&name)?;
        let before = shelf.num_bytes;
        let removed = shelf.order.pop_front().and_then(|oldest| shelf.remove(&oldest));
        (self.num_ordered, self.num_bytes) = (self.num_ordered - 1, self.num_bytes - (before - shelf.num_bytes));
        if shelf.order.is_empty() {
            self.shelves.remove(&name);
        }
        removed
    }

    /// Drops the oldest until the bounds hold.
    fn bound(&mut self, max_count: usize) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        // The orders hold deleted things, too, so their length needs a bound of its own.
        while self.num_ordered > max_count {
            gone.extend(self.remove_oldest(|shelf| shelf.order.len()));
        }
        while self.num_bytes > MAX_BYTES {
            gone.extend(self.remove_oldest(|shelf| shelf.num_bytes));
        }
        gone
    }
}

impl<T: Keepable> Kept<T> {
    pub fn new(max_count: usize) -> Self {
        Self { max_count, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, tenant: &str, id: &str, thing: T) {
        let size = thing.num_bytes();
        let mut inner = self.lock();
        let shelf = inner.shelves.entry(tenant.to_owned()).or_default();
        shelf.add(id, thing);
        shelf.order.push_back(id.to_owned());
        (inner.num_ordered, inner.num_bytes) = (inner.num_ordered + 1, inner.num_bytes + size);
        let gone = inner.bound(self.max_count);
        drop(inner);
        // What is gone is freed after the lock.
        drop(gone);
    }

    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<T>> {
        self.lock().shelves.get(tenant)?.by_id.get(id).map(|(stored, _)| stored.clone())
    }

    /// The thing that has a part of this id.
    pub fn whole_of(&self, tenant: &str, part: &str) -> Option<Arc<T>> {
        let inner = self.lock();
        let shelf = inner.shelves.get(tenant)?;
        shelf.by_id.get(shelf.by_part.get(part)?.last()?).map(|(stored, _)| stored.clone())
    }

    /// What a tenant has stored, in the order of its arrival.
    pub fn list(&self, tenant: &str) -> Vec<Arc<T>> {
        let inner = self.lock();
        let Some(shelf) = inner.shelves.get(tenant) else { return Vec::new() };
        shelf.order.iter().filter_map(|id| shelf.by_id.get(id).map(|(stored, _)| stored.clone())).collect()
    }

    /// Replaces a thing by what `change` makes of it. `None`: it is not there. An error of `change` changes nothing.
    pub fn change<E>(&self, tenant: &str, id: &str, change: impl FnOnce(&T) -> Result<T, E>) -> Option<Result<Arc<T>, E>> {
        let mut inner = self.lock();
        let shelf = inner.shelves.get_mut(tenant)?;
        let changed = match change(&shelf.by_id.get(id)?.0) {
            Ok(changed) => changed,
            Err(error) => return Some(Err(error)),
        };
        let before = shelf.num_bytes;
        let old = shelf.remove(id);
        shelf.add(id, changed);
        let (after, new) = (shelf.num_bytes, shelf.by_id.get(id).map(|(stored, _)| stored.clone()));
        inner.num_bytes = inner.num_bytes - before + after;
        let gone = inner.bound(self.max_count);
        drop(inner);
        drop((old, gone));
        new.map(Ok)
    }

    /// Deletes a thing of a tenant. Returns whether it was stored.
    pub fn delete(&self, tenant: &str, id: &str) -> bool {
        let mut inner = self.lock();
        let Some(shelf) = inner.shelves.get_mut(tenant) else { return false };
        let before = shelf.num_bytes;
        let removed = shelf.remove(id);
        let freed = before - shelf.num_bytes;
        inner.num_bytes -= freed;
        drop(inner);
        removed.is_some()
    }

    /// Panics unless the sums are right.
    #[cfg(test)]
    pub fn check(&self) -> usize {
        let inner = self.lock();
        let sum = |of: fn(&Shelf<T>) -> usize| inner.shelves.values().map(of).sum::<usize>();
        assert_eq!(inner.num_bytes, sum(|shelf| shelf.by_id.values().map(|(_, size)| size).sum()));
        assert_eq!((inner.num_bytes, inner.num_ordered), (sum(|shelf| shelf.num_bytes), sum(|shelf| shelf.order.len())));
        let parts = sum(|shelf| shelf.by_id.values().map(|(thing, _)| thing.parts().len()).sum());
        assert_eq!(sum(|shelf| shelf.by_part.values().map(Vec::len).sum()), parts);
        inner.num_bytes
    }
}
