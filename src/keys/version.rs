//! Identifies a version of a file, to notice changes.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Version {
    /// The present version of the file. `None` if there is no file.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub fn of(path: &Path) -> std::io::Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(data) => Ok(Some(Self { inode: data.ino(), size: data.size(), modified: (data.mtime(), data.mtime_nsec()) })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
