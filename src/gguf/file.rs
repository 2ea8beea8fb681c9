//! [`GgufFile`]: opens a file, or all files of a split model, and gives access to their tensors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::GgufError;
use crate::map::{Backing, Change, Map};
use crate::parse::{Metadata, Parsed, parse};
use crate::split::PartName;
use crate::tensor::TensorInfo;

/// An open model file, or all files of a split model.
pub struct GgufFile {
    path: PathBuf,
    version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// The path and bytes of each part, in order.
    pub(crate) shards: Vec<(PathBuf, Map)>,
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}

fn open_one(path: &Path, shard: usize, backing: Backing) -> Result<(Map, Parsed), GgufError> {
    let map = Map::open(path, backing).map_err(|e| GgufError::new(path, 0, format!("cannot open: {e}")))?;
    let parsed = parse(map.bytes(), shard).map_err(|fault| GgufError::new(path, fault.offset, fault.text))?;
    Ok((map, parsed))
}

impl GgufFile {
    /// Maps and validates a file. The path of any part of a split model (`-00001-of-0000N`, with `split.count`) opens all parts.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, Backing::Mapped)
    }

    /// Opens a file like [`GgufFile::open`]. `backing` chooses where its bytes live.
    pub fn open_with(path: &Path, backing: Backing) -> Result<Self, GgufError> {
        let file = Self::open_unverified(path, backing)?;
        file.verify_unchanged()?;
        Ok(file)
    }

    /// Opens a file without checking whether it changed meanwhile.
    fn open_unverified(path: &Path, backing: Backing) -> Result<Self, GgufError> {
        let (map, parsed) = open_one(path, 0, backing)?;
        // `split.count` decides whether the file was split. The name alone does not: a file that was joined or renamed may still be named
        // like a part.
        let count = split_key(path, &parsed.metadata, "split.count")?.unwrap_or(1);
        match PartName::parse(path) {
            _ if count <= 1 => Self::assemble(path, vec![(path.to_owned(), map, parsed)]),
            Some(name) => Self::open_parts(path, name, count, backing),
            None => {
                let fault = format!("split.count is {count}, but the file name is not of the form NAME-0000i-of-0000N.gguf");
                Err(GgufError::new(path, 0, fault))
            }
        }
    }

    fn open_parts(path: &Path, name: PartName, count: usize, backing: Backing) -> Result<Self, GgufError> {
        if count != name.count {
            return Err(GgufError::new(path, 0, format!("split.count is {count}, but the file name says {} parts", name.count)));
        }
        let mut parts = Vec::new();
        for no in 1..=count {
            let part = name.sibling(path, no);
            let (map, parsed) = open_one(&part, no - 1, backing)?;
            for (key, expected) in [("split.count", count), ("split.no", no - 1)] {
                let found = split_key(&part, &parsed.metadata, key)?;
                if found != Some(expected) {
                    let found = found.map_or("missing".to_owned(), |n| n.to_string());
                    return Err(GgufError::new(&part, 0, format!("{key} is {found}, expected {expected} for part {no} of {count}")));
                }
            }
            parts.push((part, map, parsed));
        }
        Self::assemble(path, parts)
    }

    /// Joins the parts: the metadata of the first part, and the tensors of all parts.
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
                return Err(GgufError::new(&shards[tensor.shard].0, 0, format!("tensor {:?} is already in part {other}", tensor.name)));
            }
        }
        if shards.len() > 1 {
            let expected = split_key(&shards[0].0, &metadata, "split.tensors.count")?;
            if expected.is_some_and(|expected| expected != tensors.len()) {
                let (all, expected) = (tensors.len(), expected.unwrap_or_default());
                return Err(GgufError::new(
                    &shards[0].0,
                    0,
                    format!("split.tensors.count is {expected}, but the parts hold {all} tensors"),
                ));
            }
        }
        Ok(GgufFile { path: path.to_owned(), version, metadata, tensors, by_name, shards })
    }

    /// The path passed to [`GgufFile::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every file of the model, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Total length of all files, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|(_, map)| map.bytes().len() as u64).sum()
    }

    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index(name).map(|i| &self.tensors[i])
    }

    /// The index of a tensor in [`GgufFile::tensors`].
    pub fn tensor_index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The bytes of one of this file's tensors. Empty if `tensor` belongs to another file and lies outside this one.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.nbytes).ok());
        let bytes = self.shards.get(tensor.shard).zip(range).and_then(|((_, map), (start, len))| {
            let end = start.checked_add(len)?;
            map.bytes().get(start..end)
        });
        bytes.unwrap_or_default()
    }

    /// Whether some bytes of a mapped file were missing when they were read, so that they read as zeros. Costs one load per file.
    pub fn is_damaged(&self) -> bool {
        self.shards.iter().any(|(_, map)| map.is_damaged())
    }

    /// Fails if a mapped file has changed since it was opened: if bytes were missing when they were read, if its length differs, or if it
    /// was written to.
    pub fn verify_unchanged(&self) -> Result<(), GgufError> {
        for (path, map) in &self.shards {
            let then = map.bytes().len();
            let fault = match map.change() {
                Ok(None) => continue,
                Ok(Some(Change::Damaged)) => "a part of the file could not be read: it was truncated, or its disk failed".to_owned(),
                Ok(Some(Change::Length(now))) => format!("the file had {then} bytes when it was opened and has {now} now"),
                Ok(Some(Change::Written)) => "the file was written to while it was open".to_owned(),
                Err(e) => return Err(GgufError::new(path, 0, format!("cannot read the file's length: {e}"))),
            };
            return Err(GgufError::new(path, 0, format!("{fault}: open it again, and replace model files by renaming")));
        }
        Ok(())
    }
}

/// The value of a `split.*` key. None if the file does not have the key.
fn split_key(path: &Path, metadata: &Metadata, key: &str) -> Result<Option<usize>, GgufError> {
    let Some(value) = metadata.get(key) else { return Ok(None) };
    match value.as_int().and_then(|n| usize::try_from(n).ok()) {
        Some(n) => Ok(Some(n)),
        None => Err(GgufError::new(path, 0, format!("{key} is {value:?}, expected a non-negative integer"))),
    }
}
