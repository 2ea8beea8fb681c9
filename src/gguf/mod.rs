//! GGUF v2 and v3, little-endian, memory-mapped, every size checked.
//!
//! A malformed file gives a [`GgufError`] that names the file, the byte and the fault; no input panics or makes the reader reserve
//! memory on the word of a length that the file's own size does not bear out. Format: ggml's `docs/gguf.md`.
//!
//! # Files that change while they are open
//! A mapped page that the file no longer has raises SIGBUS, which ends the process with every model in it, and a signal handler could
//! not give the page back. So model files are never written in place: a new version is written beside the old one and renamed over
//! it, and deletion unlinks. Both leave an open model its own inode, whole, until it is dropped. What does not keep to this rule
//! (a foreign tool that truncates a file in place) is met twice: [`GgufFile::verify_unchanged`] compares each file's length with the
//! length at open, and is asked before weights are read; and [`Backing::Private`] (`mmap = false` in the configuration) copies the
//! file at open, for directories whose writers are not trusted, after which nothing that happens to the file matters.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

mod access;
mod digest;
mod map;
mod parse;
mod reader;
mod split;
pub mod types;
pub mod value;
#[doc(hidden)]
pub mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_malformed;

pub use map::Backing;
pub use split::PartName;
pub use types::{GGML_TYPES, GgmlType, ggml_type};
pub use value::{Array, Value};
pub use writer::GgufBuilder;

use map::Map;
use parse::{Metadata, Parsed, parse};

/// A malformed file: which file, where, and what is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{path}: at byte {offset}: {fault}", path = .path.display())]
pub struct GgufError {
    pub path: PathBuf,
    pub offset: u64,
    pub fault: String,
}

#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// Innermost dimension first, as the file has them.
    pub dims: Vec<u64>,
    /// ggml's type id
    pub type_id: u32,
    /// Which file of a split model.
    pub shard: usize,
    /// From the start of that file, in bytes.
    pub offset: u64,
    pub nbytes: u64,
}

impl TensorInfo {
    /// The type's name (`Q4_K`).
    pub fn type_name(&self) -> &'static str {
        ggml_type(self.type_id).map_or("unknown", |kind| kind.name)
    }

    /// Number of weights.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}

/// An open model file (or all files of a split one).
pub struct GgufFile {
    path: PathBuf,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// One a part, in order.
    shards: Vec<(PathBuf, Map)>,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

fn error(path: &Path, offset: u64, fault: impl Into<String>) -> GgufError {
    GgufError { path: path.to_owned(), offset, fault: fault.into() }
}

fn open_one(path: &Path, shard: usize, backing: Backing) -> Result<(Map, Parsed), GgufError> {
    let map = Map::open(path, backing).map_err(|e| error(path, 0, format!("cannot open: {e}")))?;
    let parsed = parse(map.bytes(), shard).map_err(|fault| error(path, fault.offset, fault.text))?;
    Ok((map, parsed))
}

impl GgufFile {
    /// Maps and validates a file; any part of `-00001-of-0000N` opens its siblings too.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, Backing::Mapped)
    }

    pub fn open_with(path: &Path, backing: Backing) -> Result<Self, GgufError> {
        let (map, parsed) = open_one(path, 0, backing)?;
        let count = split_key(path, &parsed.metadata, "split.count")?.unwrap_or(1).max(1);
        let name = PartName::parse(path);
        match name {
            Some(name) if name.count > 1 || count > 1 => Self::open_parts(path, name, count, backing),
            None if count > 1 => Err(error(path, 0, format!("split.count is {count}, but the name is not NAME-0000i-of-0000N.gguf"))),
            _ => Self::assemble(path, vec![(path.to_owned(), map, parsed)]),
        }
    }

    fn open_parts(path: &Path, name: PartName, count: usize, backing: Backing) -> Result<Self, GgufError> {
        if count != name.count {
            return Err(error(path, 0, format!("split.count is {count}, but the name says {} parts", name.count)));
        }
        let mut parts = Vec::new();
        for no in 1..=count {
            let part = name.sibling(path, no);
            let (map, parsed) = open_one(&part, no - 1, backing)?;
            for (key, expected) in [("split.count", count), ("split.no", no - 1)] {
                let found = split_key(&part, &parsed.metadata, key)?;
                if found != Some(expected) {
                    let found = found.map_or("missing".to_owned(), |n| n.to_string());
                    return Err(error(&part, 0, format!("{key} is {found}, expected {expected} for part {no} of {count}")));
                }
            }
            parts.push((part, map, parsed));
        }
        Self::assemble(path, parts)
    }

    /// Joins the parts: the first one's metadata, everybody's tensors.
    fn assemble(path: &Path, parts: Vec<(PathBuf, Map, Parsed)>) -> Result<Self, GgufError> {
        let (mut tensors, mut shards, mut first) = (Vec::new(), Vec::new(), None);
        for (part, map, parsed) in parts {
            tensors.extend(parsed.tensors);
            first.get_or_insert((parsed.version, parsed.metadata));
            shards.push((part, map));
        }
        let (version, metadata) = first.unwrap_or_default();
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, tensor) in tensors.iter().enumerate() {
            if let Some(before) = by_name.insert(tensor.name.clone(), i) {
                let other = tensors[before].shard + 1;
                return Err(error(&shards[tensor.shard].0, 0, format!("tensor {:?} is also in part {other}", tensor.name)));
            }
        }
        if shards.len() > 1 {
            let expected = split_key(&shards[0].0, &metadata, "split.tensors.count")?;
            if expected.is_some_and(|expected| expected != tensors.len()) {
                let (all, expected) = (tensors.len(), expected.unwrap_or_default());
                return Err(error(&shards[0].0, 0, format!("split.tensors.count is {expected}, the parts hold {all} tensors")));
            }
        }
        Ok(GgufFile { path: path.to_owned(), version, metadata, tensors, by_name, shards })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every file of the model, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The sum of the files' lengths, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|(_, map)| map.bytes().len() as u64).sum()
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index(name).map(|i| &self.tensors[i])
    }

    /// A tensor's index into [`GgufFile::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The bytes of one of this file's tensors in the map. A `TensorInfo` of another file that does not fit gives none.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.nbytes).ok());
        let bytes = self.shards.get(tensor.shard).zip(range).and_then(|((_, map), (start, len))| {
            let end = start.checked_add(len)?;
            map.bytes().get(start..end)
        });
        bytes.unwrap_or_default()
    }

    /// Has a mapped file another length than when it was opened? Reading its tensors could then end the process.
    pub fn verify_unchanged(&self) -> Result<(), GgufError> {
        for (path, map) in &self.shards {
            match map.changed_len() {
                Ok(None) => {}
                Ok(Some(now)) => {
                    let then = map.bytes().len();
                    return Err(error(path, now, format!("the file had {then} bytes when it was opened and has {now} now")));
                }
                Err(e) => return Err(error(path, 0, format!("cannot ask for the file's length: {e}"))),
            }
        }
        Ok(())
    }
}

/// A split key's value, where the file has it.
fn split_key(path: &Path, metadata: &Metadata, key: &str) -> Result<Option<usize>, GgufError> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    match value.as_int().and_then(|n| usize::try_from(n).ok()) {
        Some(n) => Ok(Some(n)),
        None => Err(error(path, 0, format!("{key} is {value:?}, expected a count"))),
    }
}
