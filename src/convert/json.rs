//! Reads JSON files of bounded size.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::{Fallible, fault};

/// Far above any real file: the largest known `tokenizer.json` has 33 MB.
const MAX_BYTES: u64 = 128 << 20;

/// Reads a text file. None if there is no such file.
pub fn text(path: &Path) -> Fallible<Option<Vec<u8>>> {
    match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return fault(path, error.to_string()),
        Ok(meta) if !meta.is_file() => return fault(path, "is not a regular file"),
        Ok(meta) if meta.len() > MAX_BYTES => return fault(path, format!("has {} bytes, expected at most {MAX_BYTES}", meta.len())),
        Ok(_) => {}
    }
    std::fs::read(path).map(Some).or_else(|error| fault(path, error.to_string()))
}

/// Parses a JSON file. None if there is no such file.
pub fn read<T: DeserializeOwned>(path: &Path) -> Fallible<Option<T>> {
    let Some(text) = text(path)? else { return Ok(None) };
    serde_json::from_slice(&text).map(Some).or_else(|error| fault(path, error.to_string()))
}
