//! Responses that others may go on from: a bounded number in memory, the oldest dropped first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Bytes of all that is kept.
const MAX_BYTES: usize = 64 << 20;

/// A response and the conversation that it ends.
#[derive(Clone, Debug)]
pub struct Stored {
    pub response: Value,
    /// As a template gets them, without instructions.
    pub messages: Vec<Value>,
}

impl Stored {
    fn item_ids(&self) -> impl Iterator<Item = &str> {
        self.response["output"].as_array().into_iter().flatten().filter_map(|item| item["id"].as_str())
    }

    /// About, and not less than the texts in it.
    fn num_bytes(&self) -> usize {
        self.response.to_string().len() + self.messages.iter().map(|message| message.to_string().len() + 128).sum::<usize>()
    }
}

pub struct ResponseStore {
    max_count: usize,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<String, (Stored, usize)>,
    /// The response that an item came with.
    by_item: HashMap<String, String>,
    /// In the order of their arrival; some may have been deleted.
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
        // The list holds deleted ones, too, so that it is bounded by itself.
        while inner.order.len() > self.max_count || inner.num_bytes > MAX_BYTES {
            let Some(oldest) = inner.order.pop_front() else { break };
            inner.remove(&oldest);
        }
    }

    pub fn get(&self, id: &str) -> Option<Stored> {
        self.lock().by_id.get(id).map(|(stored, _)| stored.clone())
    }

    /// What came out with a stored response.
    pub fn item(&self, id: &str) -> Option<Value> {
        let inner = self.lock();
        let (stored, _) = inner.by_id.get(inner.by_item.get(id)?)?;
        stored.response["output"].as_array()?.iter().find(|item| item["id"] == id).cloned()
    }

    /// Was it there?
    pub fn delete(&self, id: &str) -> bool {
        self.lock().remove(id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(text: &str) -> Stored {
        Stored {
            response: json!({"text": text, "output": [{"id": format!("item_{text:.8}"), "text": text}]}),
            messages: vec![json!({"role": "user", "content": text})],
        }
    }

    #[test]
    fn the_oldest_goes_first() {
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
    fn bytes_are_bounded_and_none_may_be_kept() {
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
