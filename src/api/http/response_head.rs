//! The fields that every event of a response repeats.

use std::time::{SystemTime, UNIX_EPOCH};

use serving::Model;

#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub id: String,
    /// The time of creation [Unix seconds].
    pub created: u64,
    pub model: String,
    /// Identifies the build, the model file and the backend.
    pub fingerprint: String,
}

impl ResponseHead {
    /// Creates the head of a new response, with an id that starts with `prefix`.
    pub fn new(prefix: &str, model: &Model) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
        Self { id, created, model: model.id.clone(), fingerprint: model.base.fingerprint.clone() }
    }
}
