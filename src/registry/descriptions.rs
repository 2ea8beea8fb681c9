//! A cache of the descriptions of model files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use serving::{Capabilities, ModelDescription, ModelFile};

/// The most files whose descriptions are kept.
const MOST: usize = 256;

/// The description of a file. Its capabilities take longer to read, so they are read when first requested.
#[derive(Debug)]
pub struct DescribedFile {
    pub description: ModelDescription,
    path: PathBuf,
    template: Option<PathBuf>,
    abilities: OnceLock<Capabilities>,
}

/// A file, the template that replaces its own, the file's length, and when it was written.
type Key = (PathBuf, Option<PathBuf>, u64, Option<SystemTime>);

/// The descriptions of files read so far.
#[derive(Default)]
pub struct Descriptions(Mutex<HashMap<Key, Arc<DescribedFile>>>);

impl Descriptions {
    pub fn of(&self, path: &Path, template: Option<&Path>) -> anyhow::Result<Arc<DescribedFile>> {
        let meta = path.metadata()?;
        let key = (path.to_owned(), template.map(Path::to_owned), meta.len(), meta.modified().ok());
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lock().get(&key) {
            return Ok(found.clone());
        }
        let (path, template) = (key.0.clone(), key.1.clone());
        let described = ModelDescription::read(&path, template.as_deref())?;
        let described = Arc::new(DescribedFile { description: described, path, template, abilities: OnceLock::new() });
        let mut all = lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(key, described.clone());
        Ok(described)
    }
}

impl DescribedFile {
    /// The model's capabilities. Blocks: the first call reads the vocabulary.
    pub fn abilities(&self) -> anyhow::Result<Capabilities> {
        if let Some(abilities) = self.abilities.get() {
            return Ok(*abilities);
        }
        let file = ModelFile::open(&self.path, gguf::Backing::Mapped)?;
        let abilities = file.abilities(self.template.as_deref())?;
        Ok(*self.abilities.get_or_init(|| abilities))
    }

    /// The tensors. Blocks.
    pub fn tensors(&self) -> anyhow::Result<Vec<serving::TensorFacts>> {
        serving::tensors(&self.path)
    }

    /// The metadata, including arrays. Blocks.
    pub fn whole_metadata(&self) -> anyhow::Result<serving::Metadata> {
        serving::whole_metadata(&self.path)
    }
}
