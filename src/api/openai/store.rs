//! Stored responses, which later ones may continue.

use std::sync::Arc;

use serde_json::Value;

use super::kept::{ENTRY, Keepable, Kept};
use super::live::Live;
use super::response_draft::value;
use super::types::responses::ResponseObject;
use chat::Message;

/// A response and its conversation. What a client sees is kept as text: a tree would take many times its size.
#[derive(Default)]
pub struct Stored {
    /// The response as JSON.
    pub response: String,
    /// Without instructions. `None`: the response did not come to its end, so that nothing continues it.
    pub messages: Option<Vec<Message>>,
    /// The id of each output item, and the item as JSON.
    pub items: Vec<(String, String)>,
    /// The same of the request's input.
    pub input: Vec<(String, String)>,
    /// The events of a response that was made in the background.
    pub live: Option<Arc<Live>>,
}

/// The id of an item, and the item as JSON.
pub fn named(item: &Value) -> (String, String) {
    (item["id"].as_str().unwrap_or_default().to_owned(), item.to_string())
}

impl Stored {
    /// `text`: the response as JSON.
    pub fn new(response: &ResponseObject, text: String, messages: Option<Vec<Message>>) -> Self {
        let items = response.output.iter().map(|item| named(&value(item))).collect();
        Self { response: text, messages, items, ..Self::default() }
    }

    fn all_items(&self) -> impl Iterator<Item = &(String, String)> {
        self.items.iter().chain(&self.input)
    }
}

impl Keepable for Stored {
    fn num_bytes(&self) -> usize {
        let items: usize = self.all_items().map(|(id, item)| ENTRY + id.capacity() + item.capacity()).sum();
        let messages: usize = self.messages.iter().flatten().map(Message::num_bytes).sum();
        ENTRY + self.response.capacity() + items + messages + self.live.as_ref().map_or(0, |live| live.num_bytes())
    }

    fn parts(&self) -> Vec<&str> {
        self.all_items().map(|(id, _)| id.as_str()).collect()
    }
}

pub type ResponseStore = Kept<Stored>;

impl Kept<Stored> {
    /// An item of a stored response of a tenant.
    pub fn item(&self, tenant: &str, id: &str) -> Option<Value> {
        let stored = self.whole_of(tenant, id)?;
        let (_, item) = stored.all_items().find(|(item, _)| item == id)?;
        // The server itself wrote the text.
        serde_json::from_str(item).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::kept::MAX_BYTES;
    use chat::Role;

    fn stored(text: &str) -> Stored {
        let item = format!("{{\"id\":\"item_{text:.8}\",\"text\":\"{text:.8}\"}}");
        let items = vec![(format!("item_{text:.8}"), item)];
        let messages = Some(vec![Message::of_text(Role::User, text)]);
        Stored { response: text.to_owned(), messages, items, ..Stored::default() }
    }

    impl ResponseStore {
        fn has(&self, tenant: &str, id: &str) -> bool {
            self.get(tenant, id).is_some()
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
            assert!(store.check() <= MAX_BYTES);
        }
        assert!(!store.has("", "7") && store.has("", "9"), "two of them fit");
        let none = ResponseStore::new(0);
        none.insert("", "a", stored("a"));
        assert!(!none.has("", "a") && none.check() == 0);
        none.check();
    }

    #[test]
    fn an_item_of_two_responses_stays_until_both_are_gone() {
        let store = ResponseStore::new(10);
        let again = || Stored { input: stored("one").items, ..Stored::default() };
        for order in [["a", "b"], ["b", "a"]] {
            store.insert("", "a", stored("one"));
            store.insert("", "b", again());
            store.check();
            assert!(store.delete("", order[0]) && store.item("", "item_one").is_some());
            assert!(store.delete("", order[1]) && store.item("", "item_one").is_none());
            store.check();
        }
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
