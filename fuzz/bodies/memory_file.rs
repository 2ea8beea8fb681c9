//! Files in memory, for functions that take a path.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};

pub struct MemoryFile {
    path: PathBuf,
    /// Kept open, because the path only works while the file is open.
    file: File,
}

impl MemoryFile {
    pub fn new(bytes: &[u8]) -> Self {
        let mut file = File::from(memfd_create("fuzz", MFdFlags::MFD_CLOEXEC).expect("a file in memory"));
        file.write_all(bytes).expect("memory");
        Self::of(file)
    }

    /// A file with `bytes`, followed by `length` bytes of the repeated `pattern`. Zeros take no memory.
    pub fn padded(bytes: &[u8], pattern: [u8; 4], length: usize) -> Self {
        let memory = Self::new(bytes);
        if pattern == [0; 4] {
            memory.file.set_len((bytes.len() + length) as u64).expect("memory");
        } else {
            (&memory.file).write_all(&pattern.repeat(length / 4)).expect("memory");
        }
        memory
    }

    fn of(file: File) -> Self {
        Self { path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(), file }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
