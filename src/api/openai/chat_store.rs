//! Stored chat completions (`store`). They take a bounded amount of memory, and the least recently used ones are dropped first.

use serde_json::{Map, Value};

use super::convert::chat::StoredRequest;
use super::response_builder::value;
use super::tenant_lru::{ENTRY, LruValue, TenantLru};
use super::types::chat::ChatCompletion;

#[derive(Clone)]
pub struct StoredChat {
    pub id: String,
    pub model: String,
    pub metadata: Map<String, Value>,
    /// The completion as JSON, without metadata.
    completion: String,
    /// The messages of the request, each as JSON.
    messages: Vec<String>,
}

impl StoredChat {
    pub fn new(completion: &ChatCompletion, asked: StoredRequest) -> Self {
        let StoredRequest { messages, metadata } = asked;
        let text = value(completion).to_string();
        Self { id: completion.id.clone(), model: completion.model.clone(), metadata, completion: text, messages }
    }

    /// Returns the same completion with other metadata.
    pub fn with_metadata(&self, metadata: Map<String, Value>) -> Self {
        Self { metadata, ..self.clone() }
    }

    /// Returns the completion with its metadata.
    pub fn object(&self) -> Value {
        // The server wrote this text itself, so parsing it cannot fail.
        let mut object: Value = serde_json::from_str(&self.completion).unwrap_or_default();
        object["metadata"] = self.metadata.clone().into();
        object
    }

    /// Returns the ids of the request's messages.
    pub fn message_ids(&self) -> Vec<String> {
        (0..self.messages.len()).map(|i| format!("{}-{i}", self.id)).collect()
    }

    /// Returns the request's message with this id.
    pub fn message(&self, id: &str) -> Value {
        let at = id.rsplit('-').next().and_then(|at| at.parse::<usize>().ok());
        let text = at.and_then(|at| self.messages.get(at));
        let mut message: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        message["id"] = id.into();
        message
    }
}

impl LruValue for StoredChat {
    fn num_bytes(&self) -> usize {
        let metadata: usize = self.metadata.iter().map(|(key, value)| ENTRY + key.len() + value.as_str().map_or(0, str::len)).sum();
        let messages: usize = self.messages.iter().map(|text| ENTRY + text.capacity()).sum();
        ENTRY + self.completion.capacity() + messages + metadata
    }
}

pub type ChatStore = TenantLru<StoredChat>;
