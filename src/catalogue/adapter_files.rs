//! The files of an adapter in the store: one GGUF file, or a folder as PEFT writes it.

use std::path::{Path, PathBuf};

use super::download::{PullError, sha256_of};
use super::new_file::NewFile;
use config::{StoredAdapter, StoredFile};

/// The name of an adapter's GGUF file in a model's directory.
pub const ADAPTER_FILE: &str = "adapter.gguf";
/// The folder of an adapter's other files.
const FOLDER: &str = "adapter";
/// The files of PEFT's folder that an adapter consists of.
pub const PEFT_FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Whether a file of a made model belongs to its adapter.
pub(super) fn is_adapter_file(name: &str) -> bool {
    name == ADAPTER_FILE || Path::new(name).parent() == Some(Path::new(FOLDER))
}

/// The name in a model's directory of a file of PEFT's folder. None if an adapter has no such file.
pub fn peft_name(file: &str) -> Option<String> {
    PEFT_FILES.contains(&file).then(|| format!("{FOLDER}/{file}"))
}

/// The adapter at a path, with the digests of its files. Blocks: it reads them whole.
///
/// # Errors
/// A file is missing or cannot be read.
pub fn adapter_at(path: &Path) -> Result<Vec<NewFile>, PullError> {
    let file = |path: PathBuf, name: String| {
        let fault = |error| PullError::disk(&path, error);
        let size = outside::check_regular(&path).map_err(fault)?.len();
        let sha256 = sha256_of(&path).map_err(fault)?;
        Ok(NewFile { name, sha256, size, moves: false, path })
    };
    match path.is_dir() {
        true => PEFT_FILES.iter().map(|name| file(path.join(name), format!("{FOLDER}/{name}"))).collect(),
        false => Ok(vec![file(path.to_owned(), ADAPTER_FILE.to_owned())?]),
    }
}

/// What a made model's settings say about the files of its adapter.
pub fn stored_adapter(files: &[NewFile], scale: f32) -> StoredAdapter {
    let stored = |file: &NewFile| StoredFile { name: file.name.clone(), sha256: file.sha256.clone(), size: file.size };
    StoredAdapter { files: files.iter().filter(|file| is_adapter_file(&file.name)).map(stored).collect(), scale }
}

/// The path of a made model's adapter in the model's directory.
pub(super) fn adapter_in(dir: &Path, adapter: &StoredAdapter) -> PathBuf {
    dir.join(if adapter.files.iter().any(|file| file.name == ADAPTER_FILE) { ADAPTER_FILE } else { FOLDER })
}
