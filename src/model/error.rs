//! [`ModelError`]: why a well-formed file is not a model that the engines can run.

use std::path::PathBuf;

use crate::archs::ARCHS;

/// A fault in a model file, with the file's path.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {fault}", path = .path.display())]
pub struct ModelError {
    pub path: PathBuf,
    #[source]
    pub fault: ModelFault,
}

#[derive(Debug, thiserror::Error)]
pub enum ModelFault {
    #[error("unknown architecture {name:?}, expected one of {}", known_archs())]
    UnknownArchitecture { name: String },
    #[error("this file is {0}")]
    Accessory(&'static str),
    #[error("{key} is {found}, expected {expected}")]
    Metadata { key: String, found: String, expected: String },
    #[error("tensor {tensor} is missing, expected one of shape {expected:?} (innermost first)")]
    MissingTensor { tensor: String, expected: Vec<usize> },
    #[error("tensor {tensor} has shape {found:?}, expected {expected:?} (innermost first)")]
    TensorShape { tensor: String, found: Vec<u64>, expected: Vec<u64> },
    #[error("tensor {tensor} is of type {found}, expected {expected}")]
    TensorType { tensor: String, found: String, expected: String },
    #[error("tensor {tensor} holds {found} at index {index}, expected {expected}")]
    TensorValue { tensor: String, found: f32, index: usize, expected: &'static str },
    #[error("tensor {tensor} is not part of architecture {arch}: without it the results would be wrong")]
    UnusedTensor { tensor: String, arch: &'static str },
    #[error("tensor {tensor} belongs to an expert beyond the model's {count}")]
    ExpertNumber { tensor: String, count: usize },
    /// The file has changed since it was opened.
    #[error("{0}")]
    Changed(String),
}

fn known_archs() -> String {
    ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ")
}
