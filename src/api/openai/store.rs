//! Stored responses, which later ones may continue. They take a bounded amount of memory; the store drops the oldest first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::response_draft::value;
use super::types::responses::ResponseObject;
use chat::Message;

/// The bound on the total size of stored responses. In bytes.
const MAX_BYTES: usize = 64 << 20;
/// What an entry takes besides its texts: ids, and places in the maps. In bytes.
const ENTRY: usize = 512;

/// A response and its conversation. What a client sees is kept as text: a tree would take many times its size.
#[derive(Debug)]
pub struct Stored {
    /// The response as JSON.
    pub response: String,
    /// Without instructions.
    pub messages: Vec<Message>,
    /// The id of each output item, and the item as JSON.
    items: Vec<(String, String)>,
}

impl Stored {
    /// `text`: the response as JSON.
    pub fn new(response: &ResponseObject, text: String, messages: Vec<Message>) -> Self {
        let item = |item| {
            let item = value(item);
            (item["id"].as_str().unwrap_or_default().to_owned(), item.to_string())
        };
        Self { response: text, messages, items: response.output.iter().map(item).collect() }
    }

    /// The size in memory.
    fn num_bytes(&self) -> usize {
        let items: usize = self.items.iter().map(|(id, item)| ENTRY + id.capacity() + item.capacity()).sum();
        ENTRY + self.response.capacity() + items + self.messages.iter().map(Message::num_bytes).sum::<usize>()
    }
}

pub struct ResponseStore {
    max_count: usize,
    inner: Mutex<Inner>,
}

/// What a tenant has stored.
#[derive(Default)]
struct Shelf {
    /// Each response by its id, with its size.
    by_id: HashMap<String, (Arc<Stored>, usize)>,
    /// Maps each output item's id to its response's id.
    by_item: HashMap<String, String>,
    /// Response ids in the order of their arrival. May contain deleted ones.
    order: VecDeque<String>,
    num_bytes: usize,
}

#[derive(Default)]
struct Inner {
    /// By the tenant's name.
    shelves: HashMap<String, Shelf>,
    /// The sum over all shelves, of their orders' lengths and of their sizes.
    num_ordered: usize,
    num_bytes: usize,
}

impl Shelf {
    fn remove(&mut self, id: &str) -> Option<Arc<Stored>> {
        let (stored, size) = self.by_id.remove(id)?;
        self.num_bytes -= size;
        for (item, _) in &stored.items {
            self.by_item.remove(item);
        }
        Some(stored)
    }
}

impl Inner {
    /// Takes the oldest response of the tenant that has stored most, by the given measure. So nobody displaces what others have stored.
    fn remove_oldest(&mut self, measure: fn(&Shelf) -> usize) -> Option<Arc<Stored>> {
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
}

impl ResponseStore {
    pub fn new(max_count: usize) -> Self {
        Self { max_count, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, tenant: &str, id: &str, stored: Stored) {
        let size = stored.num_bytes();
        // Dropped after the lock is free.
        let mut gone = Vec::new();
        let mut inner = self.lock();
        let shelf = inner.shelves.entry(tenant.to_owned()).or_default();
        shelf.num_bytes += size;
        shelf.by_item.extend(stored.items.iter().map(|(item, _)| (item.clone(), id.to_owned())));
        shelf.by_id.insert(id.to_owned(), (Arc::new(stored), size));
        shelf.order.push_back(id.to_owned());
        (inner.num_ordered, inner.num_bytes) = (inner.num_ordered + 1, inner.num_bytes + size);
        // The orders hold deleted responses, too, so their length needs a bound of its own.
        while inner.num_ordered > self.max_count {
            gone.extend(inner.remove_oldest(|shelf| shelf.order.len()));
        }
        while inner.num_bytes > MAX_BYTES {
            gone.extend(inner.remove_oldest(|shelf| shelf.num_bytes));
        }
    }

    /// A response of a tenant. Another tenant's is not there.
    pub fn get(&self, tenant: &str, id: &str) -> Option<Arc<Stored>> {
        self.lock().shelves.get(tenant)?.by_id.get(id).map(|(stored, _)| stored.clone())
    }

    /// An output item of a stored response of a tenant.
    pub fn item(&self, tenant: &str, id: &str) -> Option<Value> {
        let stored = {
            let inner = self.lock();
            let shelf = inner.shelves.get(tenant)?;
            shelf.by_id.get(shelf.by_item.get(id)?)?.0.clone()
        };
        let (_, item) = stored.items.iter().find(|(item, _)| item == id)?;
        // The server itself wrote the text.
        serde_json::from_str(item).ok()
    }

    /// Deletes a response of a tenant. Returns whether it was stored.
    pub fn delete(&self, tenant: &str, id: &str) -> bool {
        // Dropped after the lock is free.
        let removed = {
            let mut inner = self.lock();
            let Some(shelf) = inner.shelves.get_mut(tenant) else { return false };
            let before = shelf.num_bytes;
            let removed = shelf.remove(id);
            let freed = before - shelf.num_bytes;
            inner.num_bytes -= freed;
            removed
        };
        removed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chat::Role;

    fn stored(text: &str) -> Stored {
        let item = format!("{{\"id\":\"item_{text:.8}\",\"text\":\"{text:.8}\"}}");
        let items = vec![(format!("item_{text:.8}"), item)];
        Stored { response: text.to_owned(), messages: vec![Message::of_text(Role::User, text)], items }
    }

    impl ResponseStore {
        fn has(&self, tenant: &str, id: &str) -> bool {
            self.get(tenant, id).is_some()
        }

        /// Panics unless the sums are right.
        fn check(&self) {
            let inner = self.lock();
            let sum = |of: fn(&Shelf) -> usize| inner.shelves.values().map(of).sum::<usize>();
            assert_eq!(inner.num_bytes, sum(|shelf| shelf.by_id.values().map(|(_, size)| size).sum()));
            assert_eq!((inner.num_bytes, inner.num_ordered), (sum(|shelf| shelf.num_bytes), sum(|shelf| shelf.order.len())));
            assert_eq!(sum(|shelf| shelf.by_item.len()), sum(|shelf| shelf.by_id.len()));
        }
    }

    #[test]
    fn a_full_store_drops_the_oldest_response() {
        let store = ResponseStore::new(3);
        for id in ["a", "b", "c"] {
            store.insert("", id, stored(id));
        }
        assert_eq!(store.item("", "item_b").unwrap()["text"], "b");
        assert!(store.delete("", "b") && !store.delete("", "b"));
        store.insert("", "d", stored("d"));
        assert!(!store.has("", "a") && !store.has("", "b"));
        assert_eq!(store.get("", "c").unwrap().response, "c");
        store.insert("", "e", stored("e"));
        store.insert("", "f", stored("f"));
        assert!(!store.has("", "c") && store.has("", "d"));
        assert!(store.item("", "item_c").is_none() && store.item("", "item_d").is_some());
        store.check();
    }

    #[test]
    fn the_total_size_is_bounded_and_a_store_of_zero_keeps_nothing() {
        let store = ResponseStore::new(1000);
        let large = "x".repeat(MAX_BYTES / 5);
        for id in 0..10 {
            store.insert("", &id.to_string(), stored(&large));
            assert!(store.lock().num_bytes <= MAX_BYTES);
        }
        assert!(!store.has("", "7") && store.has("", "9"), "two of them fit");
        let none = ResponseStore::new(0);
        none.insert("", "a", stored("a"));
        assert!(!none.has("", "a") && none.lock().num_bytes == 0);
        none.check();
    }

    #[test]
    fn a_response_is_there_for_its_tenant_alone() {
        let store = ResponseStore::new(10);
        store.insert("a", "one", stored("one"));
        for other in ["", "b"] {
            assert!(!store.has(other, "one") && store.item(other, "item_one").is_none() && !store.delete(other, "one"));
        }
        assert!(store.has("a", "one") && store.item("a", "item_one").is_some() && store.delete("a", "one"));
        store.check();
    }

    #[test]
    fn a_tenant_that_stores_much_displaces_its_own() {
        let store = ResponseStore::new(8);
        store.insert("small", "kept", stored("kept"));
        for id in 0..100 {
            store.insert("large", &id.to_string(), stored(&id.to_string()));
            store.check();
        }
        assert!(store.has("small", "kept") && store.has("large", "99") && store.has("large", "93") && !store.has("large", "92"));
        let large = |id: u32| format!("{id:08}{}", "x".repeat(MAX_BYTES / 5));
        (100..110).for_each(|id| store.insert("large", &id.to_string(), stored(&large(id))));
        assert!(store.has("small", "kept"));
        store.check();
        for id in 200..300 {
            store.insert("busy", &id.to_string(), stored(&id.to_string()));
            assert!(store.delete("busy", &id.to_string()));
        }
        assert!(store.has("small", "kept"), "deleted responses count for their tenant");
        store.check();
    }
}
