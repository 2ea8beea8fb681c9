//! Reads JSON files of bounded size.

use std::path::Path;

use outside::read_regular;
use serde::de::DeserializeOwned;

use crate::error::{Fallible, fault};

/// Far above any real file: the largest known `tokenizer.json` has 33 MB.
pub const MAX_BYTES: u64 = 128 << 20;

/// Reads a text file. None if there is no such file.
pub fn text(path: &Path) -> Fallible<Option<Vec<u8>>> {
    text_bounded(path, MAX_BYTES)
}

fn text_bounded(path: &Path, most: u64) -> Fallible<Option<Vec<u8>>> {
    match read_regular(path, most) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => fault(path, error.to_string()),
    }
}

/// Parses a JSON file. None if there is no such file.
pub fn read<T: DeserializeOwned>(path: &Path) -> Fallible<Option<T>> {
    read_bounded(path, MAX_BYTES)
}

/// Parses a JSON file of at most `most` bytes. None if there is no such file.
pub fn read_bounded<T: DeserializeOwned>(path: &Path, most: u64) -> Fallible<Option<T>> {
    let Some(text) = text_bounded(path, most)? else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).or_else(|error| fault(path, error.to_string()))
}
