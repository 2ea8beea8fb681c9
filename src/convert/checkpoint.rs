//! [`Checkpoint`]: the tensors of a folder, independent of the files that hold them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::{Fallible, fault, wrong};
use crate::json;
use crate::shard::{Shard, Tensor};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The tensors of a checkpoint, by name.
pub struct Checkpoint {
    shards: Vec<Shard>,
    tensors: Vec<(usize, Tensor)>,
}

/// `model.safetensors.index.json`
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens the files of a folder: the files that the index names, or the only file.
    pub fn open(dir: &Path) -> Fallible<Self> {
        if !dir.is_dir() {
            return fault(dir, "is not a folder: expected one with config.json and *.safetensors");
        }
        let index_path = dir.join(INDEX);
        let index: Option<Index> = json::read(&index_path)?;
        let files: Vec<PathBuf> = match &index {
            Some(index) => files_of(&index_path, index)?,
            None => vec![only_file(dir)?],
        };
        let mut checkpoint = Self { shards: Vec::new(), tensors: Vec::new() };
        let mut places = HashMap::new();
        for path in files {
            let (shard, tensors) = Shard::open(&path)?;
            for tensor in tensors {
                if let Some(other) = places.insert(tensor.name.clone(), checkpoint.shards.len()) {
                    let other: &Path = checkpoint.shards.get(other).map_or(&path, |shard| &shard.path);
                    return fault(&path, format!("tensor {} is in {} too", tensor.name, other.display()));
                }
                checkpoint.tensors.push((checkpoint.shards.len(), tensor));
            }
            checkpoint.shards.push(shard);
        }
        for (name, file) in index.iter().flat_map(|index| &index.weight_map) {
            let there = places.get(name).is_some_and(|&shard| checkpoint.shards[shard].path.file_name() == Path::new(file).file_name());
            if !there {
                return fault(&index_path, format!("tensor {name} is not in {file}: download the checkpoint again"));
            }
        }
        Ok(checkpoint)
    }

    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter().map(|(_, tensor)| tensor)
    }

    pub fn tensor(&self, index: usize) -> &Tensor {
        &self.tensors[index].1
    }

    /// Fills `out` with a tensor's bytes, starting at byte `from`.
    pub fn read(&self, index: usize, from: u64, out: &mut [u8]) -> Fallible<()> {
        let (shard, tensor) = &self.tensors[index];
        self.shards[*shard].read_tensor(tensor, from, out)
    }
}

/// The files that an index names. All must be in the index's folder.
fn files_of(path: &Path, index: &Index) -> Fallible<Vec<PathBuf>> {
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    let mut files = Vec::new();
    for name in names {
        let mut parts = Path::new(name).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return fault(path, format!("`{}` is not the name of a file in this folder", name.escape_debug()));
        }
        files.push(path.with_file_name(name));
    }
    if files.is_empty() { fault(path, "weight_map is empty") } else { Ok(files) }
}

fn only_file(dir: &Path) -> Fallible<PathBuf> {
    let single = dir.join(SINGLE);
    if single.exists() {
        return Ok(single);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).or_else(|error| fault(dir, error.to_string()))?.flatten() {
        found.extend(Some(entry.path()).filter(|path| path.extension().is_some_and(|ext| ext == "safetensors")));
    }
    match &found[..] {
        [one] => Ok(one.clone()),
        [] => fault(dir, "holds no *.safetensors: other formats (*.bin, *.pth) run code when they are read, so convert them first"),
        many => wrong(format!("{}: {} safetensors files and no {INDEX} that says which belong together", dir.display(), many.len())),
    }
}
