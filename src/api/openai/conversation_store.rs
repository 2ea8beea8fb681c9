//! Conversations: lists of items that responses read and extend. They take a bounded amount of memory, and the least recently used ones are
//! dropped first.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::disk::now;
use super::response_store::named;
use super::tenant_lru::{ENTRY, Item, LruValue, TenantLru};
use super::types::conversations::ConversationObject;

/// The most items in a conversation.
pub const MAX_ITEMS: usize = 16_384;

#[derive(Clone)]
pub struct Conversation {
    pub id: String,
    pub created_at: u64,
    pub metadata: Map<String, Value>,
    pub items: Vec<Item>,
}

impl LruValue for Conversation {
    fn num_bytes(&self) -> usize {
        let items: usize = self.items.iter().map(|item| ENTRY + item.0.capacity() + item.1.capacity()).sum();
        let metadata: usize = self.metadata.iter().map(|(key, value)| ENTRY + key.len() + value.as_str().map_or(0, str::len)).sum();
        ENTRY + self.id.capacity() + items + metadata
    }
}

impl Conversation {
    pub fn new(metadata: Map<String, Value>, items: &[Value]) -> Self {
        let id = format!("conv_{}", Uuid::new_v4().simple());
        Self { id, created_at: now(), metadata, items: items.iter().map(named).collect() }
    }

    pub fn object(&self) -> ConversationObject {
        let Self { id, created_at, metadata, .. } = self.clone();
        ConversationObject { id, object: "conversation".into(), created_at, metadata }
    }

    /// Returns the conversation with more items. An item with a known id replaces the earlier one.
    pub fn with(&self, more: &[Value]) -> Self {
        let mut grown = self.clone();
        for item in more.iter().map(named) {
            grown.items.retain(|known| known.0 != item.0);
            grown.items.push(item);
        }
        grown
    }
}

pub type ConversationStore = TenantLru<Conversation>;

impl TenantLru<Conversation> {
    /// Appends the items of a response. A conversation that was deleted in the meantime stays deleted. If a conversation is full, or there
    /// is no memory for it, its oldest items are dropped, because the response has been sent already.
    pub fn append(&self, tenant: &str, id: &str, items: &[Value]) {
        let mut most = MAX_ITEMS;
        let grow = |most: &mut usize| {
            self.change(tenant, id, |conversation| {
                let mut grown = conversation.with(items);
                *most = grown.items.len().min(*most);
                grown.items.drain(..grown.items.len() - *most);
                Ok(grown)
            })
        };
        while most > 0 && matches!(grow(&mut most), Some(Err(_))) {
            most /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tenant_lru::MAX_BYTES;
    use super::*;

    fn item(id: &str, size: usize) -> Value {
        json!({"id": id, "text": "x".repeat(size)})
    }

    #[test]
    fn a_conversation_that_finds_no_room_drops_its_oldest_items() {
        let store = ConversationStore::new(10);
        let conversation = Conversation::new(Map::new(), &[item("a", MAX_BYTES / 2)]);
        let id = conversation.id.clone();
        assert!(store.insert("", &id, conversation));
        store.append("", &id, &[item("b", MAX_BYTES / 4), item("c", MAX_BYTES / 2)]);
        let ids: Vec<_> = store.get("", &id).unwrap().items.iter().map(|item| item.0.clone()).collect();
        assert_eq!(ids, ["c"]);
        store.check();
    }
}
