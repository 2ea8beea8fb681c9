//! What every chunk of a response repeats.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::registry::LoadedModel;

#[derive(Clone, Debug)]
pub struct Head {
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// See [`crate::registry::LoadedModel`].
    pub fingerprint: String,
}

impl Head {
    /// A new response's head; its id begins with `prefix`.
    pub fn new(prefix: &str, model: &LoadedModel) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model: model.id.clone(), fingerprint: model.fingerprint.clone() }
    }
}
