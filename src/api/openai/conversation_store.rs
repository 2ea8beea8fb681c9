//! Conversations: lists of items that responses read and extend. They take a bounded amount of memory; the oldest go first.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::disk::now;
use super::kept::{ENTRY, Keepable, Kept};
use super::store::named;
use super::types::conversations::ConversationObject;

/// The most items of one conversation.
pub const MAX_ITEMS: usize = 16_384;

#[derive(Clone)]
pub struct Conversation {
    pub id: String,
    pub created_at: u64,
    pub metadata: Map<String, Value>,
    /// The id of each item, and the item as JSON.
    pub items: Vec<(String, String)>,
}

impl Keepable for Conversation {
    fn num_bytes(&self) -> usize {
        let items: usize = self.items.iter().map(|(id, item)| ENTRY + id.capacity() + item.capacity()).sum();
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

    /// The items as JSON. The server itself wrote their text.
    pub fn values(&self) -> Vec<Value> {
        self.items.iter().filter_map(|(_, item)| serde_json::from_str(item).ok()).collect()
    }

    /// The conversation with more items. One of an id that it has replaces the item of that id. `None`: it would have too many.
    pub fn with(&self, more: &[Value]) -> Option<Self> {
        let mut grown = self.clone();
        for item in more.iter().map(named) {
            grown.items.retain(|(id, _)| *id != item.0);
            grown.items.push(item);
        }
        (grown.items.len() <= MAX_ITEMS).then_some(grown)
    }
}

pub type ConversationStore = Kept<Conversation>;

impl Kept<Conversation> {
    /// Adds what a response has brought. A conversation that was deleted in the meantime stays deleted. One that is full drops its oldest
    /// items, because the response was given already.
    pub fn append(&self, tenant: &str, id: &str, items: Vec<Value>) {
        let grow = |conversation: &Conversation| {
            let mut grown = conversation.clone();
            for item in items.iter().map(named) {
                grown.items.retain(|(id, _)| *id != item.0);
                grown.items.push(item);
            }
            grown.items.drain(..grown.items.len().saturating_sub(MAX_ITEMS));
            Ok::<_, ()>(grown)
        };
        // `None` and the error, which there is not, both mean that nothing is to be done.
        let _ = self.change(tenant, id, grow);
    }
}
