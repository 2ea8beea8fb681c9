//! `/v1/files`: what clients upload and what batches write, kept in a folder.

pub mod handlers;
pub mod record;
pub mod storage_folder;
pub mod store;
pub mod upload;
