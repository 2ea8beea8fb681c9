//! `/v1/files`: uploads by clients and output of batches, stored in a folder.

pub mod handlers;
pub mod record;
pub mod storage_folder;
pub mod store;
pub mod upload;
