//! Opens files of the store without following links, so that a link in the store cannot make a pull write, or a removal delete, outside it.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a file of the store for reading and writing, and creates it if it does not exist.
///
/// # Errors
/// The path is a link or anything else than a file.
pub fn open_own(path: &Path) -> Result<File> {
    refuse_link(path)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    // The path may have become a link since it was checked.
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "is not a file: remove it"));
    }
    Ok(file)
}

/// Replaces the content of a file of the store.
pub fn write_own(path: &Path, bytes: &[u8]) -> Result<File> {
    let mut file = open_own(path)?;
    file.set_len(0)?;
    std::io::Write::write_all(&mut file, bytes)?;
    Ok(file)
}

/// Fails if the path is a link. A missing file is no error.
pub fn refuse_link(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if meta.is_symlink() => {
            Err(Error::new(ErrorKind::InvalidInput, "is a link, and links in the models' directory are not followed: remove it"))
        }
        _ => Ok(()),
    }
}
