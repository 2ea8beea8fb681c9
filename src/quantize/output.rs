//! [`Output`]: a GGUF file that appears whole or not at all.

use std::io::Write;
use std::path::{Path, PathBuf};

use outside::check_output;

use crate::error::QuantizeError;

/// The alignment of each tensor's data in bytes.
pub const ALIGNMENT: u32 = 32;

/// Checks that `out` may be written.
///
/// # Errors
/// [`QuantizeError::Exists`] if the file exists and `force` is not set, [`QuantizeError::Write`] if something else than a file is there.
pub fn may_write(out: &Path, force: bool) -> Result<(), QuantizeError> {
    check_output(out).map_err(|error| QuantizeError::Write { path: out.to_owned(), error })?;
    if force || !out.exists() { Ok(()) } else { Err(QuantizeError::Exists(out.to_owned())) }
}

/// An unfinished GGUF file under a temporary name. Removed unless it is finished.
pub struct Output {
    file: outside::Output,
    written: u64,
    /// The final name of the file.
    path: PathBuf,
}

impl Output {
    /// Creates a file next to `out`.
    pub fn create(out: &Path) -> Result<Self, QuantizeError> {
        let file = outside::Output::create(out).map_err(|error| QuantizeError::Write { path: out.to_owned(), error })?;
        Ok(Self { file, written: 0, path: out.to_owned() })
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn put(&mut self, bytes: &[u8]) -> Result<(), QuantizeError> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|error| QuantizeError::Write { path: self.path.clone(), error })
    }

    /// Writes zeros up to the start of the next tensor's data.
    pub fn align(&mut self) -> Result<(), QuantizeError> {
        let gap = self.written.next_multiple_of(u64::from(ALIGNMENT)) - self.written;
        self.put(&vec![0; gap as usize])
    }

    /// Flushes the file to disk, lets `check` inspect it, and renames it to its final name.
    pub fn finish<E: From<QuantizeError>>(self, check: impl FnOnce(&Path) -> Result<(), E>) -> Result<(), E> {
        let Self { mut file, path, .. } = self;
        let failed = |error| QuantizeError::Write { path: path.clone(), error };
        file.sync().map_err(failed)?;
        check(file.path())?;
        Ok(file.finish().map_err(failed)?)
    }
}
