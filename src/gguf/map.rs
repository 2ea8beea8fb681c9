//! Holds a file's bytes, either mapped or copied into private memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

#[cfg(not(miri))]
use memmap2::{Mmap, MmapMut};

use crate::guard::Guard;

/// Stands in for a map under Miri, which maps no files: both backings are copies there.
#[cfg(miri)]
type Mmap = Vec<u8>;

/// Where an open file's bytes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory-mapped: the system loads pages from the file on first touch and may drop them again.
    #[default]
    Mapped,
    /// Copied at open: takes as much memory as the file's length. Later changes to the file have no effect.
    Private,
}

pub(super) struct Map {
    /// The guard and file of a mapping. None for a private copy. Declared before `bytes` because the guard must be dropped first.
    mapped: Option<Mapped>,
    bytes: Mmap,
}

/// A mapped file, kept to detect changes.
struct Mapped {
    guard: Guard,
    file: File,
    /// The file's modification time when it was mapped.
    modified: SystemTime,
}

/// How a mapped file has changed since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Some bytes were missing when they were read.
    Damaged,
    /// The file has this many bytes now.
    Length(u64),
    /// The file was written to.
    Written,
}

impl Map {
    pub fn open(path: &Path, backing: Backing) -> io::Result<Self> {
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        // Checked before opening, because opening a pipe waits for its writer. Checked again after opening, because the path may have been
        // replaced.
        if !std::fs::metadata(path)?.is_file() {
            return Err(irregular());
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(irregular());
        }
        let len = usize::try_from(metadata.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        match backing {
            #[cfg(not(miri))]
            Backing::Mapped => {
                // SAFETY: the map is read-only and shared, and stays readable whatever happens to the file: the guard maps zeros where the
                // file has lost pages. Its bytes do not change unless a program writes to the file in place. The crate's documentation
                // forbids that for model files, and `change` detects it.
                #[allow(unsafe_code, reason = "only `mmap` maps a file")]
                let bytes = unsafe { Mmap::map(&file)? };
                let mapped = Mapped { guard: Guard::watch(&bytes)?, file, modified: metadata.modified()? };
                Ok(Map { mapped: Some(mapped), bytes })
            }
            _ => Ok(Map { mapped: None, bytes: copy(file, len)? }),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether bytes were missing when they were read. Costs one load.
    pub fn is_damaged(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.guard.is_damaged())
    }

    /// How the mapped file has changed since it was opened.
    pub fn change(&self) -> io::Result<Option<Change>> {
        let Some(mapped) = &self.mapped else { return Ok(None) };
        if mapped.guard.is_damaged() {
            return Ok(Some(Change::Damaged));
        }
        let now = mapped.file.metadata()?;
        let is_rewritten = now.modified()? != mapped.modified;
        let length = (now.len() != self.bytes.len() as u64).then_some(Change::Length(now.len()));
        Ok(length.or(is_rewritten.then_some(Change::Written)))
    }
}

#[cfg(miri)]
fn copy(mut file: File, len: usize) -> io::Result<Mmap> {
    let mut bytes = vec![0; len];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(not(miri))]
fn copy(mut file: File, len: usize) -> io::Result<Mmap> {
    let mut bytes = MmapMut::map_anon(len)?;
    file.read_exact(&mut bytes)?;
    bytes.make_read_only()
}
