//! Stored responses, which later ones may continue.

use std::sync::Arc;

use serde_json::Value;

use super::kept::{ENTRY, Item, Keepable, Kept};
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
    /// The output.
    pub items: Vec<Item>,
    /// The request's input.
    pub input: Vec<Item>,
    /// The events of a response that was made in the background.
    pub live: Option<Arc<Live>>,
}

/// The id of an item, and the item as JSON.
pub fn named(item: &Value) -> Item {
    // Its capacity may be twice its length, and counts.
    let mut text = item.to_string();
    text.shrink_to_fit();
    Arc::new((item["id"].as_str().unwrap_or_default().to_owned(), text))
}

impl Stored {
    /// `text`: the response as JSON.
    pub fn new(response: &ResponseObject, text: String, messages: Option<Vec<Message>>) -> Self {
        let items = response.output.iter().map(|item| named(&value(item))).collect();
        Self { response: text, messages, items, ..Self::default() }
    }

    fn all_items(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().chain(&self.input)
    }
}

impl Keepable for Stored {
    fn num_bytes(&self) -> usize {
        let items: usize = self.all_items().map(|item| ENTRY + item.0.capacity() + item.1.capacity()).sum();
        let messages: usize = self.messages.iter().flatten().map(Message::num_bytes).sum();
        ENTRY + self.response.capacity() + items + messages + self.live.as_ref().map_or(0, |live| live.num_bytes())
    }

    fn parts(&self) -> Vec<&str> {
        self.all_items().map(|item| item.0.as_str()).collect()
    }
}

pub type ResponseStore = Kept<Stored>;

impl Kept<Stored> {
    /// An item of a stored response of a tenant.
    pub fn item(&self, tenant: &str, id: &str) -> Option<Value> {
        let stored = self.whole_of(tenant, id)?;
        let item = stored.all_items().find(|item| item.0 == id)?;
        // The server itself wrote the text.
        serde_json::from_str(&item.1).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::MAX_BYTES;
    use chat::Role;
    use http::error::Kind;

    fn stored(text: &str) -> Stored {
        let item = format!("{{\"id\":\"item_{text:.8}\",\"text\":\"{text:.8}\"}}");
        let items = vec![Arc::new((format!("item_{text:.8}"), item))];
        let messages = Some(vec![Message::of_text(Role::User, text)]);
        Stored { response: text.to_owned(), messages, items, ..Stored::default() }
    }

    impl ResponseStore {
        fn has(&self, tenant: &str, id: &str) -> bool {
            self.get(tenant, id).is_some()
        }
    }

    #[test]
    fn a_full_store_drops_what_was_not_used_for_longest() {
        let store = ResponseStore::new(3);
        for id in ["a", "b", "c"] {
            store.insert("", id, stored(id));
        }
        assert_eq!(store.item("", "item_b").unwrap()["text"], "b");
        assert!(store.delete("", "b") && !store.delete("", "b"));
        store.insert("", "d", stored("d"));
        assert_eq!(store.get("", "a").unwrap().response, "a");
        store.insert("", "e", stored("e"));
        assert!(store.item("", "item_c").is_none() && store.item("", "item_a").is_some(), "a was used since");
        store.insert("", "f", stored("f"));
        assert!(!store.has("", "d") && !store.has("", "c") && store.has("", "a"));
        assert!(store.item("", "item_d").is_none() && store.item("", "item_f").is_some());
        let responses: Vec<_> = store.list("").iter().map(|stored| stored.response.clone()).collect();
        assert_eq!(responses, ["a", "e", "f"], "lists are in the order of arrival");
        store.check();
    }

    #[test]
    fn a_change_that_leaves_no_room_for_the_thing_itself_is_refused() {
        let store = ResponseStore::new(10);
        assert!(store.insert("a", "one", stored("one")) && store.insert("b", "other", stored(&"y".repeat(MAX_BYTES / 5))));
        let grow = |size: usize| store.change("a", "one", |_| Ok(stored(&"x".repeat(size)))).unwrap();
        assert_eq!(grow(MAX_BYTES / 2).err().map(|error| error.kind), Some(Kind::StorageFull));
        assert_eq!(store.get("a", "one").unwrap().response, "one");
        assert!(grow(MAX_BYTES / 5).is_ok() && !store.insert("c", "large", stored(&"z".repeat(MAX_BYTES))));
        store.check();
    }

    #[test]
    fn a_response_that_has_grown_is_counted_again() {
        let store = ResponseStore::new(10);
        let live = Live::new("{}".into(), Vec::new());
        store.insert("", "a", Stored { live: Some(live.clone()), ..stored("a") });
        let before = store.check();
        live.push("x".repeat(1000).into());
        store.measure("", "a");
        assert_eq!(store.check(), before + 1000);
        live.set_response("x".repeat(502));
        store.measure("", "a");
        assert_eq!(store.check(), before + 1500);
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
        assert!((100..110).all(|id| store.insert("large", &id.to_string(), stored(&large(id)))));
        assert!(store.has("small", "kept"));
        store.check();
        for id in 200..300 {
            store.insert("busy", &id.to_string(), stored(&id.to_string()));
            assert!(store.delete("busy", &id.to_string()));
        }
        assert!(store.has("small", "kept"), "what is deleted displaces nothing");
        store.check();
    }
}
