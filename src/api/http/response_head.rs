//! The fields that every event of a response repeats.

use std::time::{SystemTime, UNIX_EPOCH};

use serving::Model;

#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    pub model: String,
    /// Names the build, the model file and the backend.
    pub fingerprint: String,
}

impl ResponseHead {
    /// Makes the head of a new response. Its id starts with `prefix`.
    pub fn new(prefix: &str, model: &Model) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model: model.id.clone(), fingerprint: model.base.fingerprint.clone() }
    }
}
