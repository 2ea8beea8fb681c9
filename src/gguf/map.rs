//! A file's bytes: mapped, or copied into private memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// Where an open file's bytes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Mapped: pages come from the file when touched and the system may drop them again.
    #[default]
    Mapped,
    /// Copied at open: costs the file's size in memory, and nothing that happens to the file matters any more.
    Private,
}

pub(super) struct Map {
    bytes: Mmap,
    /// The mapped file, to ask for its length again; None for a private copy.
    file: Option<File>,
}

impl Map {
    pub fn open(path: &Path, backing: Backing) -> io::Result<Self> {
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        // Asked before opening, since to open a pipe waits for its writer, and again of what was opened.
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
            Backing::Private => Ok(Map { bytes: copy(file, len)?, file: None }),
            Backing::Mapped => {
                // SAFETY: the map is read-only and shared. Its bytes stay as they are while nobody writes to the file in place or
                // truncates it, which the module's documentation makes the rule for model files: they are replaced by rename.
                #[allow(unsafe_code)]
                let bytes = unsafe { Mmap::map(&file)? };
                Ok(Map { bytes, file: Some(file) })
            }
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The mapped file's length now, where it is no longer the length at open.
    pub fn changed_len(&self) -> io::Result<Option<u64>> {
        let Some(file) = &self.file else { return Ok(None) };
        let now = file.metadata()?.len();
        Ok((now != self.bytes.len() as u64).then_some(now))
    }
}

fn copy(mut file: File, len: usize) -> io::Result<Mmap> {
    let mut bytes = MmapMut::map_anon(len)?;
    file.read_exact(&mut bytes)?;
    bytes.make_read_only()
}
