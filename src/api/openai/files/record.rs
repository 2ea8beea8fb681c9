//! The record of a file, which is stored on disk next to the file.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::super::disk::now;
use super::super::types::files::FileObject;

/// The purpose of files that batches write.
pub const OUTPUT: &str = "batch_output";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub id: String,
    /// The file's tenant. Empty if it was uploaded without a key.
    pub tenant: String,
    pub bytes: u64,
    /// The time of creation [Unix seconds].
    pub created_at: u64,
    /// The time of deletion [Unix seconds].
    pub expires_at: Option<u64>,
    pub filename: String,
    pub purpose: String,
    /// The file's number in the order of arrival.
    pub serial: u64,
}

impl FileRecord {
    /// Creates the record of a tenant's file. The store sets its number.
    pub fn new(tenant: &str, filename: String, purpose: &str) -> Self {
        Self {
            id: new_id(),
            tenant: tenant.to_owned(),
            bytes: 0,
            created_at: now(),
            expires_at: None,
            filename,
            purpose: purpose.to_owned(),
            serial: 0,
        }
    }

    pub fn is_expired(&self, now: u64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    pub fn object(&self) -> FileObject {
        FileObject {
            id: self.id.clone(),
            object: "file".into(),
            bytes: self.bytes,
            created_at: self.created_at,
            expires_at: self.expires_at,
            filename: self.filename.clone(),
            purpose: self.purpose.clone(),
            status: "processed".into(),
        }
    }
}

/// Creates an id for a new file. The id is also the file's name in the folder.
pub fn new_id() -> String {
    format!("file-{}", Uuid::new_v4().simple())
}
