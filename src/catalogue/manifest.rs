//! The manifest of a stored model: its identity and its files.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::download::{MMPROJ, hex};
use config::{ModelEntry, Source, StoredVariant};

pub use super::download::MODEL;

/// A stored model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub id: String,
    pub source: Source,
    /// The digest of the file, in lower-case hex. For a split model, the digest of its files' digests, one per line.
    pub sha256: String,
    /// Size of all files [bytes].
    pub size: u64,
    /// The files of a split model, in order. Empty for a model in one file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// The model's picture encoder. `size` and `sha256` above do not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mmproj: Option<StoredMmproj>,
    /// When the model was fetched or made [Unix seconds].
    pub date: u64,
    /// The settings of a model that was made on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<StoredVariant>,
}

/// The picture encoder of a stored model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredMmproj {
    pub source: Source,
    pub sha256: String,
    pub size: u64,
}

/// One file of a split model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The file's name in the model's directory.
    pub name: String,
    pub sha256: String,
    pub size: u64,
}

impl Manifest {
    /// The manifest of a model that was fetched or made just now.
    pub fn new(entry: &ModelEntry, parts: Vec<Part>) -> Self {
        let date = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (id, source, made) = (entry.stored_as().to_owned(), entry.source.clone(), None);
        if let [one] = &parts[..] {
            return Self { id, source, sha256: one.sha256.clone(), size: one.size, parts: Vec::new(), mmproj: None, date, made };
        }
        let lines: String = parts.iter().map(|part| format!("{}\n", part.sha256)).collect();
        Self {
            id,
            source,
            sha256: hex(&Sha256::digest(lines)),
            size: parts.iter().map(|part| part.size).sum(),
            parts,
            mmproj: None,
            date,
            made,
        }
    }

    /// The digest of the files and, for a model that was made here, of its settings.
    pub fn whole_digest(&self) -> String {
        match &self.made {
            None => self.sha256.clone(),
            Some(made) => hex(&Sha256::digest(format!("{}\n{}", self.sha256, serde_json::to_string(made).expect("plain data")))),
        }
    }

    /// Size of the weights, the picture encoder and the adapter [bytes].
    pub fn whole_size(&self) -> u64 {
        self.all_files().iter().map(|(.., size)| *size).fold(0, u64::saturating_add)
    }

    /// The files of the weights, the picture encoder and the adapter, as (name, digest, size).
    pub fn all_files(&self) -> Vec<(&str, &str, u64)> {
        let mmproj = self.mmproj.iter().map(|mmproj| (MMPROJ, mmproj.sha256.as_str(), mmproj.size));
        let adapter = self.made.iter().filter_map(|made| made.adapter.as_ref()).flat_map(|adapter| &adapter.files);
        let adapter = adapter.map(|file| (file.name.as_str(), file.sha256.as_str(), file.size));
        self.files().into_iter().chain(mmproj).chain(adapter).collect()
    }

    /// The files of the weights, as (name, digest, size).
    pub fn files(&self) -> Vec<(&str, &str, u64)> {
        match &self.parts[..] {
            [] => vec![(MODEL, &self.sha256, self.size)],
            parts => parts.iter().map(|part| (part.name.as_str(), part.sha256.as_str(), part.size)).collect(),
        }
    }
}
