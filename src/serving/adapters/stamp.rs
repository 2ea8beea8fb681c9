//! [`Stamp`]: what tells whether an adapter's files have changed since they were read.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// The files of an adapter's folder.
const OF_FOLDER: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The identity, length and time of an adapter's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp(Vec<(u64, u64, u64, Option<SystemTime>)>);

impl Stamp {
    /// Reads the stamp of a file or a folder.
    ///
    /// # Errors
    /// A file is missing or is none.
    pub fn of(path: &Path) -> Result<Self, String> {
        let stamp = |meta: &Metadata| (meta.dev(), meta.ino(), meta.len(), meta.modified().ok());
        if path.is_dir() {
            // A file that is missing is reported by the reader, which knows what it needs.
            let of = |name: &&str| path.join(name).metadata().ok().map(|meta| stamp(&meta));
            return Ok(Self(OF_FOLDER.iter().filter_map(of).collect()));
        }
        let meta = outside::check_regular(path).map_err(|error| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let what = if error.kind() == ErrorKind::NotFound { "no such file".to_owned() } else { error.to_string() };
            format!("{name}: {what}")
        })?;
        Ok(Self(vec![stamp(&meta)]))
    }

    /// A bound on the memory that the adapter will take, since most files have 16 bits per number where memory has 32 [bytes].
    pub fn most_bytes(&self) -> u64 {
        self.0.iter().map(|(_, _, len, _)| len.saturating_mul(2)).fold(0, u64::saturating_add)
    }
}
