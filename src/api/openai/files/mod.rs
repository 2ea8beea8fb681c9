//! `/v1/files`: what clients upload and what batches write, kept in a folder.

pub mod entry;
pub mod handlers;
pub mod room;
pub mod shelf;
pub mod upload;
