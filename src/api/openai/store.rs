//! Stored responses, which later ones may continue. A bounded number stays in memory; the store drops the oldest first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use chat::Message;

/// The bound on the total size of stored responses. In bytes.
const MAX_BYTES: usize = 64 << 20;

/// A response and its conversation.
#[derive(Clone, Debug)]
pub struct Stored {
    pub response: Value,
    /// Without instructions.
    pub messages: Vec<Message>,
}

impl Stored {
    fn item_ids(&self) -> impl Iterator<Item = &str> {
        self.response["output"].as_array().into_iter().flatten().filter_map(|item| item["id"].as_str())
    }

    /// An estimate of the size. At least the size of the texts.
    fn num_bytes(&self) -> usize {
        self.response.to_string().len() + self.messages.iter().map(Message::num_bytes).sum::<usize>()
    }
}

pub struct ResponseStore {
    max_count: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<String, (Stored, usize)>,
    /// Maps each output item's id to its response's id.
    by_item: HashMap<String, String>,
    /// Response ids in the order of their arrival. May contain deleted ones.
    order: VecDeque<String>,
    num_bytes: usize,
}

impl Inner {
    fn remove(&mut self, id: &str) -> bool {
        let Some((stored, size)) = self.by_id.remove(id) else { return false };
        self.num_bytes -= size;
        for item in stored.item_ids() {
            self.by_item.remove(item);
        }
        true
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
        let mut inner = self.lock();
        inner.num_bytes += size;
        let items: Vec<_> = stored.item_ids().map(|item| (item.to_owned(), id.to_owned())).collect();
        inner.by_item.extend(items);
        inner.by_id.insert(id.to_owned(), (stored, size));
        inner.order.push_back(id.to_owned());
        // `order` holds deleted responses, too, so its length needs a bound of its own.
        while inner.order.len() > self.max_count || inner.num_bytes > MAX_BYTES {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.remove(&oldest);
        }
    }

    pub fn get(&self, id: &str) -> Option<Stored> {
        self.lock().by_id.get(id).map(|(stored, _)| stored.clone())
    }

    /// An output item of a stored response.
    pub fn item(&self, id: &str) -> Option<Value> {
        let inner = self.lock();
        let (stored, _) = inner.by_id.get(inner.by_item.get(id)?)?;
        stored.response["output"].as_array()?.iter().find(|item| item["id"] == id).cloned()
    }

    /// Deletes a response. Returns whether it was stored.
    pub fn delete(&self, id: &str) -> bool {
        self.lock().remove(id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use chat::Role;

    fn stored(text: &str) -> Stored {
        Stored {
            response: json!({"text": text, "output": [{"id": format!("item_{text:.8}"), "text": text}]}),
            messages: vec![Message::of_text(Role::User, text)],
        }
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
        assert_eq!(store.get("c").unwrap().response["text"], "c");
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
