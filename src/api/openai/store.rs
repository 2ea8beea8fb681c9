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

#[derive(Default)]
struct Inner {
    /// Each response by its id, with its size.
    by_id: HashMap<String, (Arc<Stored>, usize)>,
    /// Maps each output item's id to its response's id.
    by_item: HashMap<String, String>,
    /// Response ids in the order of their arrival. May contain deleted ones.
    order: VecDeque<String>,
    num_bytes: usize,
}

impl Inner {
    fn remove(&mut self, id: &str) -> Option<Arc<Stored>> {
        let (stored, size) = self.by_id.remove(id)?;
        self.num_bytes -= size;
        for (item, _) in &stored.items {
            self.by_item.remove(item);
        }
        Some(stored)
    }
}

impl ResponseStore {
    pub fn new(max_count: usize) -> Self {
        Self { max_count, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn insert(&self, id: &str, stored: Stored) {
        let size = stored.num_bytes();
        // Dropped after the lock is free.
        let mut gone = Vec::new();
        let mut inner = self.lock();
        inner.num_bytes += size;
        inner.by_item.extend(stored.items.iter().map(|(item, _)| (item.clone(), id.to_owned())));
        inner.by_id.insert(id.to_owned(), (Arc::new(stored), size));
        inner.order.push_back(id.to_owned());
        // `order` holds deleted responses, too, so its length needs a bound of its own.
        while inner.order.len() > self.max_count || inner.num_bytes > MAX_BYTES {
            let Some(oldest) = inner.order.pop_front() else { break };
            gone.extend(inner.remove(&oldest));
        }
    }

    pub fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.lock().by_id.get(id).map(|(stored, _)| stored.clone())
    }

    /// An output item of a stored response.
    pub fn item(&self, id: &str) -> Option<Value> {
        let stored = {
            let inner = self.lock();
            inner.by_id.get(inner.by_item.get(id)?)?.0.clone()
        };
        let (_, item) = stored.items.iter().find(|(item, _)| item == id)?;
        // The server itself wrote the text.
        serde_json::from_str(item).ok()
    }

    /// Deletes a response. Returns whether it was stored.
    pub fn delete(&self, id: &str) -> bool {
        let removed = self.lock().remove(id);
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

    #[test]
    fn a_full_store_drops_the_oldest_response() {
        let store = ResponseStore::new(3);
        for id in ["a", "b", "c"] {
            store.insert(id, stored(id));
        }
        assert_eq!(store.item("item_b").unwrap()["text"], "b");
        assert!(store.delete("b") && !store.delete("b"));
        store.insert("d", stored("d"));
        assert!(store.get("a").is_none() && store.get("b").is_none());
        assert_eq!(store.get("c").unwrap().response, "c");
        store.insert("e", stored("e"));
        store.insert("f", stored("f"));
        assert!(store.get("c").is_none() && store.get("d").is_some());
        assert!(store.item("item_c").is_none() && store.item("item_d").is_some());
        let inner = store.lock();
        assert_eq!(inner.by_item.len(), inner.by_id.len());
    }

    #[test]
    fn the_total_size_is_bounded_and_a_store_of_zero_keeps_nothing() {
        let store = ResponseStore::new(1000);
        let large = "x".repeat(MAX_BYTES / 5);
        for id in 0..10 {
            store.insert(&id.to_string(), stored(&large));
            assert!(store.lock().num_bytes <= MAX_BYTES);
        }
        assert!(store.get("7").is_none() && store.get("9").is_some(), "two of them fit");
        let none = ResponseStore::new(0);
        none.insert("a", stored("a"));
        assert!(none.get("a").is_none() && none.lock().num_bytes == 0);
    }
}
