//! The section `[storage]`: objects that clients keep on the server.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The section `[storage]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The folder of files and batches. "" in a file means a folder in the user's data directory, and is replaced by its path. If there is
    /// no such directory, it stays empty and no files are kept.
    pub folder: PathBuf,
    /// The largest uploaded file [bytes].
    pub max_file_bytes: u64,
    /// The most disk space for all files together [bytes].
    pub max_bytes: u64,
    /// The most files.
    pub max_files: usize,
    /// The most lines of one batch.
    pub max_batch_lines: usize,
    /// The most batches that have not ended.
    pub max_batches: usize,
    /// The most batch lines that run at once, over all batches. 0: batches are accepted but do not run.
    pub batch_concurrency: usize,
    /// How long a batch and its output are kept after its end [days].
    pub batch_days: u64,
    /// The most conversations in memory. The least recently used one is dropped first.
    pub max_conversations: usize,
    /// The most chat completions with `store` in memory. The least recently used one is dropped first.
    pub max_stored_chats: usize,
    /// The most responses with `background` that run at once.
    pub max_background: usize,
}

fn within<T: PartialOrd + std::fmt::Display>(value: T, range: RangeInclusive<T>) -> Result<(), String> {
    if range.contains(&value) { Ok(()) } else { Err(format!("{value} is not between {} and {}", range.start(), range.end())) }
}

/// Checks the setting that was set last.
pub(super) fn check(key: &str, storage: &Storage) -> Result<(), String> {
    match key {
        "max_file_bytes" => within(storage.max_file_bytes, 1024..=1 << 40),
        "max_bytes" => within(storage.max_bytes, 1024..=1 << 50),
        "max_files" => within(storage.max_files, 1..=1 << 20),
        "max_batch_lines" => within(storage.max_batch_lines, 1..=1 << 20),
        "max_batches" => within(storage.max_batches, 1..=10_000),
        "batch_concurrency" => within(storage.batch_concurrency, 0..=4096),
        "batch_days" => within(storage.batch_days, 1..=3650),
        "max_conversations" => within(storage.max_conversations, 0..=1 << 20),
        "max_stored_chats" => within(storage.max_stored_chats, 0..=1 << 20),
        "max_background" => within(storage.max_background, 0..=1 << 16),
        _ => Ok(()),
    }
}
