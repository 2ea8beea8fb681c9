//! [`BaseWeights`]: a loaded model's weights, which adapters are fitted to.

use std::path::PathBuf;
use std::sync::Arc;

use gguf::{Backing, GgufFile};
use model::Weights;

/// The weights of a loaded model, for reading what an adapter depends on.
pub enum BaseWeights {
    /// The mapped file, or the copy that the engine uses.
    Open(Box<Weights>),
    /// A file whose copy in the host's memory was given back when a device had loaded it, and its digest.
    Closed(PathBuf, String),
}

impl BaseWeights {
    /// `used_in_place`: whether the engine reads the file's bytes where they are.
    pub(crate) fn of(weights: &Weights, backing: Backing, used_in_place: bool) -> Self {
        match backing {
            Backing::Private if !used_in_place => Self::Closed(weights.file.path().to_owned(), weights.file.digest()),
            _ => Self::Open(Box::new(weights.clone())),
        }
    }

    /// Passes the weights to `read`.
    ///
    /// # Errors
    /// The file is not the one that was loaded any more, or as `read`.
    pub(super) fn with<T>(&self, read: impl FnOnce(&Weights) -> Result<T, String>) -> Result<T, String> {
        let (path, digest) = match self {
            Self::Open(weights) => return read(weights),
            Self::Closed(path, digest) => (path, digest),
        };
        let changed = "the model's file has changed since it was loaded, so that no adapter can be fitted to it: load the model again";
        let file = GgufFile::open(path).ok().filter(|file| file.digest() == *digest).ok_or(changed)?;
        read(&Weights::load(Arc::new(file)).map_err(|_| changed)?)
    }
}
