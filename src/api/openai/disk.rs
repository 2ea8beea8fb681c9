//! Crash-safe writing of the server's own files, and the error for a full disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use http::error::{ApiError, Kind};

/// The suffix of an unfinished file.
pub const UNFINISHED: &str = ".part";

/// Writes a file atomically: a reader finds either the old content or the new one, even after a crash.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    let written = File::create(&name).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    if let Err(error) = written.and_then(|()| publish(Path::new(&name), path)) {
        // If this fails as well, the folder is cleaned at the next start.
        let _ = fs::remove_file(&name);
        return Err(error);
    }
    Ok(())
}

/// Renames a file whose content is on disk, and syncs the new name.
pub fn publish(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    match to.parent() {
        Some(folder) => sync_folder(folder),
        None => Ok(()),
    }
}

/// Syncs the names in a folder to disk, so that a power failure does not lose them.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a hard link to a complete file, or a copy if the file system has no hard links. `to` exists completely or not at all.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to).or_else(|_| copy_whole(from, to))
}

fn copy_whole(from: &Path, to: &Path) -> io::Result<()> {
    let mut name = to.as_os_str().to_owned();
    name.push(UNFINISHED);
    let copied = fs::copy(from, &name).and_then(|_| File::open(&name)?.sync_all());
    copied.and_then(|()| publish(Path::new(&name), to)).inspect_err(|_| {
        // If this fails as well, the folder is cleaned at the next start.
        let _ = fs::remove_file(&name);
    })
}

/// Removes a file, which may not exist.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether the disk is full, or the process may not write more to it.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Makes the error for a client. The cause is only logged, since it may name the server's files.
pub fn refused(error: &io::Error, what: &str) -> ApiError {
    tracing::error!("{what} failed: {error}");
    if is_full(error) {
        return ApiError::new(Kind::NoSpace, format!("{what} failed: the server's disk is full; nothing of it was kept"));
    }
    ApiError::new(Kind::StorageGone, format!("{what} failed: the server's log has the cause"))
}

/// The current time [Unix seconds].
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_there_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        assert!(copy_whole(&from, &to).is_err() && fs::read_dir(dir.path()).unwrap().count() == 0);
        fs::write(&from, b"text").unwrap();
        copy_whole(&from, &to).unwrap();
        assert_eq!((fs::read(&to).unwrap(), fs::read_dir(dir.path()).unwrap().count()), (b"text".to_vec(), 2));
        // The copy fails as if it were interrupted, because a folder has the temporary name.
        fs::create_dir(dir.path().join("c.part")).unwrap();
        assert!(copy_whole(&from, &dir.path().join("c")).is_err() && !dir.path().join("c").exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        write_whole(&path, b"old").unwrap();
        fs::create_dir(dir.path().join("a.part")).unwrap();
        assert!(write_whole(&path, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        fs::remove_dir(dir.path().join("a.part")).unwrap();
        write_whole(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read_dir(dir.path()).unwrap().count()), (b"new".to_vec(), 1));
    }
}
