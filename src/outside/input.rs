//! Opens files that must be regular: models, checkpoints, settings, keys, certificates.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use super::kind;

/// Opens a regular file for reading. Never blocks.
///
/// # Errors
/// The system's error, or [`ErrorKind::InvalidInput`] that names the kind of file that the path leads to.
pub fn open_regular(path: &Path) -> Result<File> {
    // Opening a device may have an effect, so the kind of file is checked first. It is checked again after opening, because the file may
    // have been replaced.
    check_regular(path)?;
    // Miri opens files without these flags only.
    let flags = if cfg!(miri) { OFlag::empty() } else { OFlag::O_NONBLOCK | OFlag::O_NOCTTY };
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    refuse_others(&file.metadata()?)?;
    Ok(file)
}

/// Checks that a path leads to a regular file, without opening it.
///
/// # Errors
/// As [`open_regular`].
pub fn check_regular(path: &Path) -> Result<Metadata> {
    let metadata = std::fs::metadata(path)?;
    refuse_others(&metadata)?;
    Ok(metadata)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open_regular`], or the file is longer.
pub fn read_regular(path: &Path, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} bytes, the most that are read")));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `most` bytes in UTF-8.
///
/// # Errors
/// As [`read_regular`], or the file holds something else than UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read_regular(path, most)?)
        .map_err(|error| Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 at byte {}", error.utf8_error().valid_up_to())))
}

fn refuse_others(metadata: &Metadata) -> Result<()> {
    let found = metadata.file_type();
    if found.is_file() {
        return Ok(());
    }
    let advice = if found.is_dir() { "name a file in it" } else { "copy what it yields to a file, and name that" };
    Err(Error::new(ErrorKind::InvalidInput, format!("it is {}, not a regular file: {advice}", kind::name(found))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn only_a_regular_file_is_opened_and_the_error_names_what_else_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        assert_eq!(["file", "link"].map(|name| read_text(&at(name), 4).unwrap()), ["text", "text"]);
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("to-fifo")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let cases =
            [("fifo", "a FIFO"), ("to-fifo", "a FIFO"), ("socket", "a socket"), (".", "a directory"), ("/dev/null", "a character device")];
        for (name, kind) in cases {
            let (opened, read) = (open_regular(&at(name)).unwrap_err(), read_regular(&at(name), 9).unwrap_err());
            assert_eq!(opened.to_string(), read.to_string());
            assert!(opened.to_string().starts_with(&format!("it is {kind}, not a regular file: ")), "{name}: {opened}");
        }
        assert_eq!(open_regular(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn what_is_read_is_bounded_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"ab\xff").unwrap();
        assert!(read_regular(&path, 2).unwrap_err().to_string().contains("more than 2 bytes"));
        assert!(read_text(&path, 3).unwrap_err().to_string().contains("not UTF-8 at byte 2"));
    }
}
