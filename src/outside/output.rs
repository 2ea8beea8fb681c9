//! Outputs that a user names.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{BufWriter, Error, ErrorKind, Result, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::kind;

/// The most links from one to the next, as Linux follows them.
const MAX_LINKS: usize = 40;
/// The most unfinished files of the same name that others may have left.
const MAX_LEFT: usize = 100;
/// The permissions of a new file, less what the process's mask takes away, and those of one for its owner alone.
const FOR_ALL: u32 = 0o666;
const FOR_OWNER: u32 = 0o600;

/// The target of an output's path, once its links are followed.
enum Target {
    /// The path of a regular file, and the file that exists there, if any.
    File(PathBuf, Option<Metadata>),
    /// An open file of the process (`/dev/stdout`, a shell's `>(…)`), a FIFO or a character device.
    Stream(PathBuf, &'static str),
}

impl Target {
    /// # Errors
    /// A directory, a block device or a socket is there, or nothing that could be a file.
    fn of(path: &Path) -> Result<Self> {
        let mut at = path.to_owned();
        for _ in 0..MAX_LINKS {
            let folder = folder_of(&at);
            // These lead to what is open, whatever it is: a file that is replaced would lose what others write to it.
            if folder.canonicalize().is_ok_and(|folder| folder.starts_with("/proc")) {
                return Ok(Self::Stream(at, "an open file of a process"));
            }
            match std::fs::read_link(&at) {
                Ok(next) => at = folder.join(next),
                Err(_) => return Self::at(at),
            }
        }
        Err(Error::other("its links lead in a circle: name another file"))
    }

    /// The target at the end of the links.
    fn at(path: PathBuf) -> Result<Self> {
        let found = match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && path.file_name().is_some() => return Ok(Self::File(path, None)),
            found => found?,
        };
        let kind = found.file_type();
        match kind {
            _ if kind.is_file() => Ok(Self::File(path, Some(found))),
            _ if kind.is_fifo() || kind.is_char_device() => Ok(Self::Stream(path, kind::name(kind))),
            _ => Err(unfit(kind::name(kind))),
        }
    }
}

fn unfit(kind: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("it is {kind}, which is not replaced: name a regular file, or one that does not exist"))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Checks that an [`Output`] can be created at this path: nothing or a regular file exists there.
///
/// # Errors
/// Something other than a regular file exists there.
pub fn check_output(path: &Path) -> Result<()> {
    match Target::of(path)? {
        Target::File(..) => Ok(()),
        Target::Stream(_, kind) => Err(unfit(kind)),
    }
}

/// Writes what `fill` gives: to a file that appears whole or not at all, or through a FIFO, a character device or an open file.
///
/// # Errors
/// Something else is there, or the system's.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    match Target::of(path)? {
        Target::Stream(path, _) => {
            // Behind what others have written there.
            let mut stream = BufWriter::new(OpenOptions::new().append(true).open(path)?);
            fill(&mut stream)?;
            stream.flush()
        }
        Target::File(place, before) => {
            let mut output = Output::beside(place, before, FOR_ALL)?;
            fill(&mut output)?;
            output.finish()
        }
    }
}

/// A regular file that is being written under a temporary name next to its final path, and removed unless it is finished. It takes the
/// permissions of the file that it replaces and, if the system allows it, the owner.
pub struct Output {
    file: BufWriter<File>,
    unfinished: Unfinished,
    place: PathBuf,
    before: Option<Metadata>,
}

/// Removes the unfinished file unless it was renamed.
struct Unfinished {
    path: PathBuf,
    renamed: bool,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.renamed {
            // Nothing else can be done about it here.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl Output {
    /// # Errors
    /// The system's error, or something other than a regular file exists at the path.
    pub fn create(path: &Path) -> Result<Self> {
        Self::with_mode(path, FOR_ALL)
    }

    /// As [`Output::create`]. A new file can be read and written only by its owner.
    pub fn create_private(path: &Path) -> Result<Self> {
        Self::with_mode(path, FOR_OWNER)
    }

    fn with_mode(path: &Path, mode: u32) -> Result<Self> {
        match Target::of(path)? {
            Target::File(place, before) => Self::beside(place, before, mode),
            Target::Stream(_, kind) => Err(unfit(kind)),
        }
    }

    fn beside(place: PathBuf, before: Option<Metadata>, mode: u32) -> Result<Self> {
        // From the beginning, nobody may read more than before.
        let mode = before.as_ref().map_or(mode, |before| before.mode() & 0o777);
        for left in 0..MAX_LEFT {
            let path = place.with_file_name(partial_name(&place, left));
            match OpenOptions::new().write(true).create_new(true).mode(mode).open(&path) {
                // In a container, processes have the same ids again and again.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let folder = folder_of(&place).display();
                    return Err(Error::new(ErrorKind::NotFound, format!("there is no folder {folder}: make it first")));
                }
                opened => {
                    let unfinished = Unfinished { path, renamed: false };
                    return Ok(Self { file: BufWriter::new(opened?), unfinished, place, before });
                }
            }
        }
        let names = partial_name(&place, 0);
        Err(Error::new(ErrorKind::AlreadyExists, format!("{MAX_LEFT} files like {} are in the way: remove them", names.display())))
    }

    /// Where the bytes are before they have their name.
    pub fn path(&self) -> &Path {
        &self.unfinished.path
    }

    /// Brings the bytes to the disk.
    pub fn sync(&mut self) -> Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }

    /// Gives the file its name, once its bytes are on the disk.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        if let Some(before) = &self.before {
            let file = self.file.get_ref();
            // Only root may give a file away. A file that any other user writes belongs to that user.
            let _ = fchown(file, Some(before.uid()), Some(before.gid()));
            file.set_permissions(PermissionsExt::from_mode(before.mode() & 0o7777))?;
        }
        std::fs::rename(&self.unfinished.path, &self.place)?;
        self.unfinished.renamed = true;
        // Some file systems cannot sync a folder.
        let _ = File::open(folder_of(&self.place)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}

fn partial_name(place: &Path, left: usize) -> OsString {
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{}.partial", std::process::id(), if left > 0 { format!("-{left}") } else { String::new() }));
    name
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
