//! [`Output`]: a file that appears whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::QuantizeError;

/// The alignment of each tensor's data in bytes.
pub const ALIGNMENT: u32 = 32;

/// Checks that `out` may be written.
///
/// # Errors
/// [`QuantizeError::Exists`] if the file exists and `force` is not set.
pub fn may_write(out: &Path, force: bool) -> Result<(), QuantizeError> {
    if force || !out.exists() { Ok(()) } else { Err(QuantizeError::Exists(out.to_owned())) }
}

/// Removes the unfinished output unless it was renamed.
struct Unfinished {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            // The file may not exist yet, and a failure here cannot be handled.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// An unfinished GGUF file under a temporary name. Removed unless it is finished.
pub struct Output {
    file: BufWriter<File>,
    written: u64,
    unfinished: Unfinished,
    /// The final name of the file.
    path: PathBuf,
}

impl Output {
    /// Creates a file next to `out`.
    pub fn create(out: &Path) -> Result<Self, QuantizeError> {
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let unfinished = Unfinished { path: out.with_file_name(name), renamed: false };
        let failed = |error| QuantizeError::Write { path: out.to_owned(), error };
        let file = OpenOptions::new().write(true).create_new(true).open(&unfinished.path).map_err(failed)?;
        Ok(Self { file: BufWriter::new(file), written: 0, unfinished, path: out.to_owned() })
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), QuantizeError> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error: io::Error| QuantizeError::Write { path: self.path.clone(), error })
    }

    /// Writes zeros up to the start of the next tensor's data.
    pub fn align(&mut self) -> Result<(), QuantizeError> {
        let gap = self.written.next_multiple_of(u64::from(ALIGNMENT)) - self.written;
        self.put(&vec![0; gap as usize])
    }

    /// Flushes the file to disk, lets `check` inspect it, and renames it to its final name.
    pub fn finish<E: From<QuantizeError>>(self, check: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
        let Self { file, mut unfinished, path, .. } = self;
        let failed = |error| QuantizeError::Write { path: path.clone(), error };
        file.into_inner().map_err(|error| failed(error.into_error()))?.sync_all().map_err(failed)?;
        check(&unfinished.path)?;
        std::fs::rename(&unfinished.path, &path).map_err(failed)?;
        unfinished.renamed = true;
        Ok(())
    }
}
