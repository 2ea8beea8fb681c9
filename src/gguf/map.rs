//! A file's bytes, either mapped or copied into private memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// Where an open file's bytes live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Memory-mapped: the system loads pages from the file when they are touched and may drop them again.
    #[default]
    Mapped,
    /// Copied at open: takes as much memory as the file is long. Later changes to the file have no effect.
    Private,
}

pub(super) struct Map {
    bytes: Mmap,
    /// The mapped file, kept to check its length later. None for a private copy.
    file: Option<File>,
}

impl Map {
    pub fn open(path: &Path, backing: Backing) -> io::Result<Self> {
        let irregular = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        // Checked before opening, because opening a pipe waits for its writer, and again after, because the path may have been replaced.
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
                // SAFETY: the map is read-only and shared. Its bytes do not change as long as nobody writes to the file in place or
                // truncates it. The crate's documentation makes that the rule for model files: they are replaced by rename.
                #[allow(unsafe_code)]
                let bytes = unsafe { Mmap::map(&file)? };
                Ok(Map { bytes, file: Some(file) })
            }
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The mapped file's current length, if it differs from the length at open.
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
